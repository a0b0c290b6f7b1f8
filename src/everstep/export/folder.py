"""A run's `export/` folder: every form the model can be served in, or a word on why not."""

import contextlib
import logging
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import keras

from everstep.errors import TrainingError, UsageError
from everstep.export.keras_file import export_keras
from everstep.export.saved_model import export_saved_model
from everstep.export.torch_program import export_torch_program

logger = logging.getLogger(__name__)

SAVED_MODEL = "saved_model"
"""The name of a SavedModel in a run's `export/`."""


def export_all(model: keras.Model, directory: Path, sample: Any) -> list[Path]:
    """Writes every form there is for the backend, each loaded back and compared; returns what was written.

    `model.keras` on each; `saved_model/` on TensorFlow and JAX; `model.pt2` on PyTorch.

    A form that this model or this machine cannot have is a warning, and does not fail the run.
    """
    if type(model).call is keras.Model.call:
        logger.warning(
            "not exported: model %r has no call(), so it answers nothing; save what it consists of, as in "
            "model.generator.save('generator.keras')",
            model.name,
        )
        return []
    written = []
    with _remembering(model):
        for name, write in (("model.keras", export_keras), serving_form()):
            try:
                write(model, directory / name, sample)
                written.append(directory / name)
            except (UsageError, TrainingError, NotImplementedError, TypeError, ValueError) as error:
                logger.warning("not exported as %s: %s", name, error)
    if not written and directory.is_dir() and not any(directory.iterdir()):
        directory.rmdir()  # nobody should look for a model there
    return written


def serving_form() -> tuple[str, Callable[[keras.Model, Path, Any], None]]:
    """Returns the name of the form that the backend's own tools serve, and what writes it."""
    if keras.backend.backend() == "torch":
        return "model.pt2", export_torch_program
    return SAVED_MODEL, export_saved_model


@contextlib.contextmanager
def _remembering(model: keras.Model) -> Iterator[None]:
    """After the block a stateful RNN has what it had before it: the comparison calls the model."""
    layers = [layer for layer in model._flatten_layers() if getattr(layer, "stateful", False)]
    kept = [variable for layer in layers for variable in keras.tree.flatten(getattr(layer, "states", None) or [])]
    values = [keras.ops.convert_to_numpy(variable).copy() for variable in kept]
    try:
        yield
    finally:
        for variable, value in zip(kept, values, strict=True):
            variable.assign(value)
