"""`exported/`: the best epoch of a run, complete or absent.

exported/savedmodel/    the model's forward pass; on PyTorch exported/model.pt2
exported/config.yaml    the configuration that it was trained with
exported/export.json    which epoch it is, by which metric it was chosen, and a digest of every file
"""

import contextlib
import hashlib
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import keras

from everstep import redaction, storage
from everstep.config import dialect
from everstep.errors import TrainingError, UsageError, plain_text
from everstep.export import load_checkpoint, sample_inputs
from everstep.loop.actions import STEP
from everstep.projects import COMPONENTS
from everstep.projects.components.building import Components
from everstep.projects.components.config import ConfigStruct, training_values
from everstep.projects.components.error_context import describe_error
from everstep.projects.components.exported_model import input_dtypes, write_model
from everstep.projects.components.run_folder import RunFolder
from everstep.run import code_version, with_imported_files
from everstep.types import Batch

RECORD = Path(COMPONENTS.export_record).name
_TEMPORARY = re.compile(r"\.everstep-\w+-exported(?:/\.everstep-\w+-(?=savedmodel|model\.pt2))?")


def export_best(components: Components, folder: RunFolder, model: keras.Model, sample: Batch) -> None:
    """Exports the best weights; they are loaded again and compared before they replace an older export.

    Args:
      components: The project's components.
      folder: The run's folder.
      model: A new model, which gets the weights.
      sample: A batch of model inputs.

    Raises:
      TrainingError: No epoch can be the best, or the export predicts something else than the model.
    """
    best = best_epoch(folder, components.config)
    few = sample_inputs(model, sample)
    if not model.built:
        model(few)
    load_checkpoint(model, folder.best / str(int(best[STEP])))

    def write(directory: Path) -> dict[str, Any]:
        name = write_model(model, directory, few)
        return {**best, "model": name, "inputs": input_dtypes(model, few)}

    write_export(folder, components.config, write)


def write_export(folder: RunFolder, config: ConfigStruct, write: Callable[[Path], dict[str, Any]]) -> None:
    """Writes `exported/` at once: an older one stays until the new one is complete.

    Args:
      folder: The run's folder.
      config: The configuration, which is written, too.
      write: Writes the model into a folder, and returns what `export.json` records of it.

    Raises:
      TrainingError: It cannot be written, or predicts something else than the model.
    """
    root = folder.path.parent.parent
    with _write_errors(folder), storage.atomic_path(folder.exported) as temporary:
        temporary.mkdir()
        facts = write(temporary)
        storage.write_text(temporary / "config.yaml", dialect.dump(redaction.tree(config.as_dict())))
        record = {**_identity(config), "code": with_imported_files(code_version(root), root), **facts}
        record["files"] = _digests(temporary)
        storage.write_json(temporary / RECORD, record)


@contextlib.contextmanager
def _write_errors(folder: RunFolder) -> Iterator[None]:
    """Inside the block any error becomes one line, which also names what still exists."""
    try:
        yield
    except UsageError:
        raise
    except Exception as error:
        text = plain_text(error)
        if not isinstance(error, TrainingError):
            text = f"{str(folder.exported)!r} cannot be written: {describe_error(error)}"
        text = _TEMPORARY.sub(lambda found: "exported/" if "/" in found[0] else "exported", text)
        text += "; the former export is unchanged" if folder.exported.is_dir() else ""
        text += "" if folder.step() is None else "; all epochs are saved, the same command exports them"
        raise TrainingError(text) from error


def best_epoch(folder: RunFolder, config: ConfigStruct) -> dict[str, Any]:
    """Returns the metrics, `epoch` and step of the best epoch.

    Raises:
      TrainingError: The metric was never finite.
    """
    metric = config.export.metric
    try:
        best = storage.read_json(folder.best / "info.json")
    except UsageError:
        raise TrainingError(
            f"{metric!r} was finite in no epoch, so there is nothing to export", key="export.metric"
        ) from None
    return {**best, "metric": metric, "mode": config.export.mode}


def read_export(folder: RunFolder) -> dict[str, Any]:
    """Returns the contents of `export.json`, with every file checked against its digest.

    Raises:
      UsageError: There is no export, or it is damaged.
    """
    path = folder.exported / RECORD
    if not path.is_file():
        raise UsageError("contains no export", key="run", received=str(folder.exported), remedy="train the run first")
    try:
        record = storage.read_json(path)
        found = _damage(record, folder.exported)
    except UsageError as error:
        found = f"{RECORD} {error.reason}"
    if found:
        raise DamagedExport(
            f"the export is damaged: {found}",
            key="run",
            received=str(folder.exported),
            remedy="run again: it is replaced",
        )
    return record


def _damage(record: Any, directory: Path) -> str:
    """Returns how the files of an export differ from its record; empty if they do not."""
    files, expected = _digests(directory), record.get("files") if isinstance(record, dict) else None
    if not isinstance(expected, dict):
        return f"{RECORD} does not say which files there were"
    for name in sorted({*files, *expected}):
        if files.get(name) != expected.get(name):
            return f"{name} {'is missing' if name not in files else 'has changed' if name in expected else 'was added'}"
    return ""


class DamagedExport(UsageError):
    """There is an export, but it is not what was written."""


def damage(folder: RunFolder) -> str:
    """Returns what is wrong with an export that exists; empty if it is intact, or there is none."""
    try:
        read_export(folder)
    except DamagedExport as error:
        return error.reason
    except UsageError:
        pass
    return ""


def is_exported(folder: RunFolder, config: ConfigStruct) -> bool:
    """Whether there is an intact export of this configuration, so that nothing is left to train."""
    try:
        record = read_export(folder)
    except UsageError:
        return False
    return all(record.get(key) == value for key, value in _identity(config).items())


def is_current(folder: RunFolder, config: ConfigStruct) -> bool:
    """Whether there is an intact export of the best epoch trained so far."""
    if not is_exported(folder, config):
        return False
    record = read_export(folder)
    return all(record.get(key) == value for key, value in best_epoch(folder, config).items())


def _identity(config: ConfigStruct) -> dict[str, Any]:
    """Returns the part of `export.json` that identifies the configuration."""
    values = redaction.tree({**training_values(config), "epochs": config.epochs, "seed": config.seed})
    export = {"metric": config.export.metric, "mode": config.export.mode}
    return {**export, "trained": hashlib.sha256(dialect.dump(values).encode("utf-8")).hexdigest()}


def _digests(directory: Path) -> dict[str, str]:
    files = sorted(path for path in directory.rglob("*") if path.is_file() and path != directory / RECORD)
    return {str(path.relative_to(directory)): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}
