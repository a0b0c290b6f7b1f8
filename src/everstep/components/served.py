"""The form that a model is exported in: a SavedModel, or the form of a backend that cannot write one."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

import keras

from everstep.components.exported_model import ExportedModel
from everstep.export.exported_program import ExportedProgram
from everstep.export.folder import SAVED_MODEL as _SAVED_MODEL
from everstep.export.folder import serving_form

SAVED_MODEL = "savedmodel"
"""The name of a SavedModel in a project's `exported/`."""


class Served(Protocol):
    """An exported model."""

    def predict(self, x: Any) -> Any:
        """Returns the answers to a batch of inputs, as NumPy arrays in the model's nesting."""

    def give_weights(self, model: keras.Model) -> None:
        """Gives a model the exported weights."""


def served_name() -> str:
    """Returns the name of the form that this backend can write."""
    name = serving_form()[0]
    return SAVED_MODEL if name == _SAVED_MODEL else name


def write_served(model: keras.Model, directory: Path, sample: Any) -> str:
    """Writes the model, loaded back and compared; returns the name that it has in the directory."""
    _, write = serving_form()
    write(model, directory / served_name(), sample)
    return served_name()


def open_served(path: str | Path, dtypes: Sequence[str] | None = None) -> Served:
    """Opens what `write_served` wrote, whatever backend this process has.

    Args:
      path: The SavedModel, or the file of the program.
      dtypes: The types of its inputs, flat; None to hand them over as they are.
    """
    return ExportedProgram(path, dtypes) if Path(path).suffix == ".pt2" else ExportedModel(path, dtypes)
