"""A run's `export/` folder: every form the model can be served in, or a word on why not."""

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import keras

from everstep.errors import TrainingError, UsageError
from everstep.export.keras_file import export_keras
from everstep.export.saved_model import export_saved_model
from everstep.export.torch_program import export_torch_program

logger = logging.getLogger(__name__)


def export_all(model: keras.Model, directory: Path, sample: Any) -> list[Path]:
    """Writes every form there is for the backend, each loaded back and compared; returns what was written.

    `model.keras` on each; `saved_model/` on TensorFlow and JAX; `model.pt2` on PyTorch.

    A form that this model or this machine cannot have is a warning, and does not fail the run.
    """
    written = []
    for name, write in _forms().items():
        try:
            write(model, directory / name, sample)
            written.append(directory / name)
        except (UsageError, TrainingError, NotImplementedError, TypeError, ValueError) as error:
            logger.warning("not exported as %s: %s", name, error)
    return written


def _forms() -> dict[str, Callable[[keras.Model, Path, Any], None]]:
    if keras.backend.backend() == "torch":
        return {"model.keras": export_keras, "model.pt2": export_torch_program}
    return {"model.keras": export_keras, "saved_model": export_saved_model}
