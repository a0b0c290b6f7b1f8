"""A run's `export/` folder: every form the model can be served in, or a word on why not."""

import logging
from pathlib import Path
from typing import Any

import keras

from everstep.errors import TrainingError, UsageError
from everstep.export.keras_file import export_keras
from everstep.export.saved_model import export_saved_model

logger = logging.getLogger(__name__)


def export_all(model: keras.Model, directory: Path, sample: Any) -> list[Path]:
    """Writes `model.keras` and `saved_model/`, each loaded back and compared; returns what was written.

    A form that this model or this machine cannot have is a warning, and does not fail the run.
    """
    forms = (("model.keras", export_keras), ("saved_model", export_saved_model))
    written = []
    for name, write in forms:
        try:
            write(model, directory / name, sample)
            written.append(directory / name)
        except (UsageError, TrainingError, NotImplementedError, TypeError, ValueError) as error:
            logger.warning("not exported as %s: %s", name, error)
    return written
