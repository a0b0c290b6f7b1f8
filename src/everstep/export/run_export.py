"""`export_model`: a model in memory, or the model of a run with the weights of one of its checkpoints."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import keras

from everstep import storage
from everstep.engine.hub import is_hub_task
from everstep.errors import TrainingError, UsageError, kind_of, renamed_keys
from everstep.export.model_export import export_all, load_checkpoint, sample_inputs
from everstep.export.predict.finding import Found, find, local_run
from everstep.export.predict.models import load_keras
from everstep.run.averaged_checkpoint import as_checkpoint
from everstep.run.checkpoint_selection import Chosen, choose

_ARGUMENTS = {"RUN": "model_or_run", "--checkpoint": "checkpoint"}
"""The arguments of `export_model` by what the command calls them."""


def export_model(
    model_or_run: storage.PathLike | keras.Model,
    directory: storage.PathLike,
    sample: Any = None,
    *,
    checkpoint: str | int | None = None,
) -> list[Path]:
    """Writes a model in every format that the backend has, as `everstep export` does.

        export_model(model, "serving/digits")
        export_model("runs/mnist-local-5f2c7a90b1", "serving/best", checkpoint="best")

    `model.keras` on each backend, `saved_model/` on TensorFlow and JAX, `model.pt2` on PyTorch. Each is loaded back and
    compared with the live model before it gets its name; an earlier export in `directory` is replaced. A format that
    this model or this machine does not support is skipped with a warning. For preprocessing, several signatures or
    numbered versions, see `ExportModule` and `export`.

    Args:
      model_or_run: A Keras model; or a run directory, its URL or a run's id; or a `.keras` file.
      directory: The folder to write to; it is created.
      sample: A batch of model inputs to compare outputs on; None to make up numbers of the declared shapes.
      checkpoint: Which of the run's weights to export: a step, `best`, `last` (the default), or several steps for
        their average.

    Returns:
      The paths that were written.

    Raises:
      UsageError: There is no such run or checkpoint, or the model cannot be loaded or called on the sample.
      TrainingError: The model cannot be written in any format, or a checkpoint is damaged.
    """
    with renamed_keys(_ARGUMENTS):
        written = _export(model_or_run, Path(directory), sample, checkpoint)
    if not written:
        raise TrainingError("cannot be exported in any format; the warnings say why", key="model_or_run")
    return written


def _export(model_or_run: Any, directory: Path, sample: Any, checkpoint: str | int | None) -> list[Path]:
    if not isinstance(model_or_run, str | os.PathLike | keras.Model):
        raise UsageError(f"expected a Keras model or a path, not {kind_of(model_or_run)}", key="model_or_run")
    if isinstance(model_or_run, str | os.PathLike):
        found = find(local_run(os.fspath(model_or_run), None if checkpoint is None else str(checkpoint)))
        if found.directory is not None:
            chosen = choose(found.directory, "last" if checkpoint is None else str(checkpoint))
            return export_run(found, chosen, directory, sample)
    if checkpoint is not None:
        raise UsageError(
            "a model alone has no checkpoints", key="checkpoint", received=checkpoint, remedy="name the run directory"
        )
    if isinstance(model_or_run, keras.Model):
        return export_all(model_or_run, directory, sample_inputs(model_or_run, sample))
    model, sample = _load_exported(found, sample, None)
    return export_all(model, directory, sample)


def export_run(
    found: Found,
    chosen: Chosen,
    directory: Path,
    sample: Any = None,
    rebuild: Callable[[], tuple[keras.Model, Any]] | None = None,
) -> list[Path]:
    """Writes the model of a run with the weights of a checkpoint, in every format; returns the paths.

    Args:
      found: The run.
      chosen: The checkpoint, or several for their average.
      directory: The folder to write to.
      sample: A batch of model inputs to compare outputs on; None to make up numbers of the declared shapes.
      rebuild: Builds the model and a batch for it by the run's experiment, for a run without a usable `model.keras`.

    Raises:
      UsageError: The model cannot be loaded or built, or has other weights.
      TrainingError: A checkpoint is damaged.
    """
    model, sample = _load_exported(found, sample, rebuild)
    with as_checkpoint(chosen) as path:
        load_checkpoint(model, path)
    return export_all(model, directory, sample)


def _load_exported(
    found: Found, sample: Any, rebuild: Callable[[], tuple[keras.Model, Any]] | None
) -> tuple[keras.Model, Any]:
    """Returns the model and a batch for it: the exported model, which needs no data, else the rebuilt one."""
    failure = None
    if found.model is not None and not found.model.is_dir():
        try:
            model = load_keras(found.model)
        except UsageError as error:  # a class that only the experiment's module registers, for example
            failure = error
        else:
            if rebuild is not None and is_hub_task(model):  # adapters are merged in its file, and apart in checkpoints
                return rebuild()
            try:
                return model, sample_inputs(model, sample)
            except UsageError:
                if rebuild is None:  # else the experiment has data
                    raise
    if rebuild is None:
        raise failure or UsageError(
            "has no model.keras",
            key="RUN",
            received=str(found.directory or found.model),
            remedy="pass the model itself, with the weights of everstep.export.load_checkpoint",
        )
    try:
        return rebuild()
    except UsageError as error:
        raise failure or error from None
