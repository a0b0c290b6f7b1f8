"""The formats by name; `register_format` adds those of other packages to those that ship.

A module that registers a format is imported by the program, by `--import`, or, if its package names it, always:

    [project.entry-points."everstep.export_formats"]
    npz = "my_package.npz_format"
"""

import dataclasses
import functools
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import keras

from everstep import storage
from everstep.entry_points import entry_points
from everstep.errors import UsageError
from everstep.export import hub_preset
from everstep.export.comparison import check_same, flat_arrays, live_outputs

logger = logging.getLogger(__name__)

SAVED_MODEL = "saved_model"
"""The name of a SavedModel in a run's `export/`."""

FORMATS = {
    "keras": "model.keras",
    "saved_model": SAVED_MODEL,
    "torch": "model.pt2",
    "preset": hub_preset.PRESET,
    "adapter": hub_preset.ADAPTER,
    "transformers": hub_preset.TRANSFORMERS,
}
"""The formats that ship by name, each with its file or folder in an export."""

ENTRY_POINTS = "everstep.export_formats"
"""The group of the entry points."""


@dataclasses.dataclass(frozen=True)
class ExportFormat:
    """A way to write a model, which is used where its name is asked for.

    Attributes:
      name: What `export=`, `formats=` and `--format` call it.
      file: The file or folder that it writes into an export's directory.
      write: Called with the model and a path when training is done; writes a file or a folder there.
      load: Called with the path; returns a function from a batch of inputs to the outputs.
      why_not: Called with the model before anything is trained; returns why it cannot be written, or an empty text.
    """

    name: str
    file: str
    write: Callable[[keras.Model, Path], Any]
    load: Callable[[Path], Callable[[Any], Any]]
    why_not: Callable[[keras.Model], str] = lambda model: ""

    def export(self, model: keras.Model, path: Path, sample: Any) -> None:
        """Writes a model under a temporary name, loads it and compares its outputs; then it gets its own name.

        Args:
          model: The trained model.
          path: Where to write it; the folder is created.
          sample: A batch of inputs.

        Raises:
          TrainingError: What is loaded has other outputs than the model. Nothing is written.
        """
        storage.prepare_directory(path.parent)
        with storage.atomic_path(path) as temporary:
            self.write(model, temporary)
            check_same(model, live_outputs(model, sample), flat_arrays(self.load(temporary)(sample)), str(path))


_formats: dict[str, ExportFormat] = {}


def register_format(export_format: ExportFormat) -> ExportFormat:
    """Adds a format to those that can be asked for, and returns it; one of the same name is replaced.

    Raises:
      UsageError: A format that ships has its name, or its file.
    """
    for name, file in FORMATS.items():
        if name == export_format.name or file == export_format.file:
            raise UsageError(
                f"the format {name!r}, which ships, has this name or its file {file!r}",
                key="register_format",
                received=export_format.name,
                remedy="choose another name and file",
            )
    _formats[export_format.name] = export_format
    return export_format


def file_of(name: str) -> str:
    """Returns the file or folder that a format writes into an export's directory."""
    return FORMATS.get(name) or registered_formats()[name].file


def registered_formats() -> dict[str, ExportFormat]:
    """Returns the formats of other packages by name."""
    _load_entry_points()
    return _formats


@functools.cache
def _load_entry_points() -> None:
    for point in entry_points(ENTRY_POINTS):
        try:
            point.load()
        except Exception as error:  # a broken package must not stop this run
            logger.warning(
                "the export format %r (%s) is skipped: %s: %s", point.name, point.value, type(error).__name__, error
            )
