"""`export_model`: a model in memory, or the model of a run with the weights of one of its checkpoints."""

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import keras

from everstep import storage
from everstep.engine import is_hub_task
from everstep.errors import TrainingError, UsageError, kind_of, renamed_keys
from everstep.export import chosen_formats, export_all, file_of, load_checkpoint, sample_inputs
from everstep.run import Chosen, as_checkpoint, choose
from everstep.trained.finding import Found, find, local_run
from everstep.trained.models import load_keras

_ARGUMENTS = {"RUN": "model_or_run", "--checkpoint": "checkpoint", "--format": "formats"}
"""The arguments of `export_model` by what the command calls them."""


def export_model(
    model_or_run: storage.PathLike | keras.Model,
    directory: storage.PathLike,
    sample: Any = None,
    *,
    checkpoint: str | int | None = None,
    formats: str | Sequence[str] | None = None,
) -> list[Path]:
    """Writes a model in every format that the backend has, or in some, as `everstep export` does.

        export_model(model, "serving/digits", formats="saved_model")
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
      formats: Names of formats, `keras`, `saved_model`, `torch`, `preset`, `adapter` or `transformers`, or one of them;
        None for all that the backend and the model have.

    Returns:
      The paths that were written.

    Raises:
      UsageError: There is no such run, checkpoint or format, or the model cannot be loaded or called on the sample.
      TrainingError: The model cannot be written in any format, or not in one of `formats`; or a checkpoint is damaged.
    """
    with renamed_keys(_ARGUMENTS):
        written = _export(model_or_run, Path(directory), sample, checkpoint, formats)
    if not written:
        raise TrainingError("cannot be exported in any format; the warnings say why", key="model_or_run")
    return written


def _export(
    model_or_run: Any, directory: Path, sample: Any, checkpoint: str | int | None, formats: str | Sequence[str] | None
) -> list[Path]:
    if not isinstance(model_or_run, str | os.PathLike | keras.Model):
        raise UsageError(f"expected a Keras model or a path, not {kind_of(model_or_run)}", key="model_or_run")
    if isinstance(model_or_run, str | os.PathLike):
        found = find(local_run(os.fspath(model_or_run), None if checkpoint is None else str(checkpoint)))
        if found.directory is not None:
            chosen = choose(found.directory, "last" if checkpoint is None else str(checkpoint))
            return export_run(found, chosen, directory, sample, formats=formats)
    if checkpoint is not None:
        raise UsageError(
            "a model alone has no checkpoints", key="checkpoint", received=checkpoint, remedy="name the run directory"
        )
    if isinstance(model_or_run, keras.Model):
        return _write(model_or_run, directory, sample_inputs(model_or_run, sample), formats)
    model, sample = _load_exported(found, sample, None)
    return _write(model, directory, sample, formats)


def _write(model: keras.Model, directory: Path, sample: Any, formats: str | Sequence[str] | None) -> list[Path]:
    """Writes a model in all formats, or in those that are asked for, each of which must succeed.

    Raises:
      UsageError: A format is unknown, or not of this model or backend.
      TrainingError: One that was asked for could not be written.
    """
    if formats is None:
        return export_all(model, directory, sample)
    chosen = chosen_formats(formats, model, "--format")
    written = export_all(model, directory, sample, chosen)
    names = {path.name for path in written}
    if failed := [name for name in chosen if file_of(name) not in names]:
        raise TrainingError(
            "the model cannot be written in this format; the warning above says why",
            key="--format",
            received=failed[0],
        )
    return written


def export_run(
    found: Found,
    chosen: Chosen,
    directory: Path,
    sample: Any = None,
    rebuild: Callable[[], tuple[keras.Model, Any]] | None = None,
    formats: str | Sequence[str] | None = None,
) -> list[Path]:
    """Writes the model of a run with the weights of a checkpoint; returns the paths.

    Args:
      found: The run.
      chosen: The checkpoint, or several for their average.
      directory: The folder to write to.
      sample: A batch of model inputs to compare outputs on; None to make up numbers of the declared shapes.
      rebuild: Builds the model and a batch for it by the run's experiment, for a run without a usable `model.keras`.
      formats: Names of formats, each of which must succeed; None for all that can be written.

    Raises:
      UsageError: The model cannot be loaded or built, has other weights, or cannot have one of `formats`.
      TrainingError: A checkpoint is damaged, or one of `formats` could not be written.
    """
    model, sample = _load_exported(found, sample, rebuild)
    with as_checkpoint(chosen) as path:
        load_checkpoint(model, path)
    return _write(model, directory, sample, formats)


def _load_exported(
    found: Found, sample: Any, rebuild: Callable[[], tuple[keras.Model, Any]] | None
) -> tuple[keras.Model, Any]:
    """Returns the model and a batch for it: the exported model, which needs no data, else the rebuilt one."""
    failure, alone = None, ""
    if found.model is not None and not found.model.is_dir():
        try:
            model = load_keras(found.model)
        except UsageError as error:  # a class that only the experiment's module registers, for example
            failure = error
        else:
            if rebuild is not None and is_hub_task(model):
                alone = "may have adapters, which are merged in its file, and apart in checkpoints"
            else:
                try:
                    return model, sample_inputs(model, sample)
                except UsageError as error:
                    failure = error if rebuild is None else None  # else the experiment has data
                    alone = "declares no numeric inputs"
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
        if alone:
            raise UsageError(
                f"its model {alone}, and no experiment builds it ({error.reason})",
                key="RUN",
                received=str(found.directory),
                remedy="for a run of everstep.fit, make the same call with export=[…]; else --import the experiment",
            ) from None
        raise failure or error from None
