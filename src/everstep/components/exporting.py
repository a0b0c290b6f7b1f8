"""`exported/`: the best epoch of a run, complete or not there at all.

exported/savedmodel/    the model's forward pass; on PyTorch exported/model.pt2
exported/config.yaml    the configuration that it was trained with
exported/export.json    which epoch it is, by what it was chosen, and a digest of every file
"""

import contextlib
import hashlib
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import keras

from everstep import redaction, storage
from everstep.actions.best_checkpoint import STEP
from everstep.components.blame import in_a_line, reason
from everstep.components.building import Components
from everstep.components.config_struct import ConfigStruct
from everstep.components.run_folder import RunFolder
from everstep.components.served import write_served
from everstep.components.training_config import training_values
from everstep.config import dialect
from everstep.data import nest
from everstep.errors import TrainingError, UsageError
from everstep.export.from_checkpoint import load_checkpoint
from everstep.export.saved_model import declared_inputs
from everstep.run.environment import code_version
from everstep.types import Batch

RECORD = "export.json"
_HALF_MADE = re.compile(r"\.everstep-\w+-exported(?:/\.everstep-\w+-(?=savedmodel|model\.pt2))?")


def export_best(components: Components, folder: RunFolder, model: keras.Model, sample: Batch) -> None:
    """Exports the weights that were best, loaded back and compared before anything takes its place.

    Args:
      components: The project's.
      folder: The run's folder.
      model: A new model; it is given the weights.
      sample: A batch of model inputs.

    Raises:
      TrainingError: No epoch can be the best, or the export does not answer as the model does.
    """
    best = best_epoch(folder, components.config)
    few = nest.map_leaves(lambda leaf: leaf[:8], sample)
    if not model.built:
        model(few)
    load_checkpoint(model, folder.best / str(int(best[STEP])))

    def write(directory: Path) -> dict[str, Any]:
        name = write_served(model, directory, few)
        return {**best, "model": name, "inputs": input_dtypes(model, few)}

    write_export(folder, components.config, write)


def write_export(folder: RunFolder, config: ConfigStruct, write: Callable[[Path], dict[str, Any]]) -> None:
    """Writes `exported/` in one piece: what is there stays until the new one is complete.

    Args:
      folder: The run's folder.
      config: The configuration; it goes along.
      write: Writes the model into a folder, and returns what `export.json` is to say of it.

    Raises:
      TrainingError: It cannot be written, or not so that it answers as the model does.
    """
    with _failing_in_a_line(folder), storage.atomic_path(folder.exported) as temporary:
        temporary.mkdir()
        facts = write(temporary)
        values = redaction.tree(config.as_dict())
        storage.write_text(temporary / "config.yaml", dialect.dump(values))
        record = {**_identity(config), "code": code_version(folder.path.parent.parent), **facts}
        record["files"] = _digests(temporary)
        storage.write_json(temporary / RECORD, record)


@contextlib.contextmanager
def _failing_in_a_line(folder: RunFolder) -> Iterator[None]:
    """Inside the block, whatever Keras, TensorFlow or the disk raise becomes a line that says what there is still."""
    try:
        yield
    except UsageError:
        raise
    except Exception as error:
        text = in_a_line(error)
        if not isinstance(error, TrainingError):
            text = f"{str(folder.exported)!r} cannot be written: {reason(error)}"
        raise TrainingError(f"{_HALF_MADE.sub(_named, text)}{_left(folder)}") from error


def _named(half_made: re.Match[str]) -> str:
    """Returns the name that it would have had."""
    return "exported/" if "/" in half_made[0] else "exported"


def _left(folder: RunFolder) -> str:
    former = "; the export of before is still there" if folder.exported.is_dir() else ""
    return former if folder.step() is None else f"{former}; all epochs are saved, the same command exports them"


def best_epoch(folder: RunFolder, config: ConfigStruct) -> dict[str, Any]:
    """Returns the metrics, `epoch` and step of the best epoch.

    Raises:
      TrainingError: There is none: the metric was never a finite number.
    """
    try:
        best = storage.read_json(folder.best / "info.json")
    except UsageError:
        metric = config.export.metric
        raise TrainingError(f"export.metric: {metric!r} was a finite number in no epoch: nothing to export") from None
    return {**best, "metric": config.export.metric, "mode": config.export.mode}


def read_export(folder: RunFolder) -> dict[str, Any]:
    """Returns what `export.json` says, with every file as it was written.

    Raises:
      UsageError: There is no export, or it is damaged.
    """
    path = folder.exported / RECORD
    if not path.is_file():
        raise UsageError(f"there is no export in {str(folder.exported)!r}: train the run first")
    record = storage.read_json(path)
    if not isinstance(record, dict) or record.get("files") != _digests(folder.exported):
        raise UsageError(f"the export in {str(folder.exported)!r} is damaged: remove it, and run again")
    return record


def is_exported(folder: RunFolder, config: ConfigStruct) -> bool:
    """Tells whether an intact export of this very configuration is there: nothing is left to train."""
    try:
        record = read_export(folder)
    except UsageError:
        return False
    return all(record.get(key) == value for key, value in _identity(config).items())


def is_current(folder: RunFolder, config: ConfigStruct) -> bool:
    """Tells whether an intact export is the best epoch of what was trained so far."""
    if not is_exported(folder, config):
        return False
    record = read_export(folder)
    return all(record.get(key) == value for key, value in best_epoch(folder, config).items())


def _identity(config: ConfigStruct) -> dict[str, Any]:
    """Returns what of a configuration decides on the export."""
    values = redaction.tree({**training_values(config), "epochs": config.epochs, "seed": config.seed})
    export = {"metric": config.export.metric, "mode": config.export.mode}
    return {**export, "trained": hashlib.sha256(dialect.dump(values).encode("utf-8")).hexdigest()}


def input_dtypes(model: keras.Model, sample: Any) -> list[str]:
    """Returns the types of the model's inputs: as it declares them, else those of the sample."""
    arrays = keras.tree.flatten(sample)
    return [str(each.dtype) for each in declared_inputs(model, sample) or arrays]


def _digests(directory: Path) -> dict[str, str]:
    files = sorted(path for path in directory.rglob("*") if path.is_file() and path != directory / RECORD)
    return {str(path.relative_to(directory)): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}
