"""`DataType`: what reads and writes one type of data."""

import inspect
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar, Literal

from everstep.errors import Problem, UsageError, nearest

Verb = Literal["load", "save"]


class DataType:
    """One type of data. A project may add its own, and name it in its catalog by its dotted name.

        class Wave(DataType):
            def load(self, path, *, channel: int = 0):
                return read_wave(path)[channel]

            def save(self, value, path):
                write_wave(path, value)

        # config/catalog.yaml
        voice: {type: my_project.audio.Wave, filepath: data/raw/voice.wav, load_args: {channel: 1}}

    A path is always one of this machine: data in a store is fetched before, and uploaded after. `save` writes to
    a temporary name with the same suffix, which takes the place of the old content when it is complete. A
    catalog may set the keyword-only parameters under `load_args` and `save_args`.

    Attributes:
      suffixes: The suffixes of files that have this type by default.
      marker: For a type that is a folder: the file that makes it complete.
    """

    suffixes: ClassVar[tuple[str, ...]] = ()
    marker: ClassVar[str] = ""

    def load(self, path: Path) -> Any:
        """Returns the content of a file or folder that exists."""
        raise UsageError(f"{type(self).__name__} cannot be loaded", remedy="add a method load(self, path)")

    def save(self, value: Any, path: Path) -> None:
        """Writes a value to a file or folder that does not exist yet."""
        raise UsageError(f"{type(self).__name__} cannot be saved", remedy="add a method save(self, value, path)")

    def require_permission(self, root: Path) -> None:
        """Raises a UsageError where a project has to allow this type and does not."""


def unknown_arguments(kind: type[DataType], verb: Verb, given: Mapping[str, Any]) -> list[Problem]:
    """Returns a problem for each of `load_args` or `save_args` that the type's method does not have."""
    parameters = inspect.signature(getattr(kind, verb)).parameters.values()
    known = [one.name for one in parameters if one.kind is inspect.Parameter.KEYWORD_ONLY]
    unknown = [str(name) for name in given if name not in known]
    return [
        Problem(name, "unknown argument", remedy=nearest(name, known) if known else "this type takes none")
        for name in unknown
    ]
