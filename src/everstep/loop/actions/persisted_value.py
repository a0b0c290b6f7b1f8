"""A value in a JSON file."""

from pathlib import Path
from typing import Any

from everstep import storage


class JSONPersistedValue:
    """One value that outlives the process.

        steps = JSONPersistedValue(0, "runs/demo/steps.json")
        steps.write(steps.read() + 1)

    Args:
      initial_value: What it is where there is no file.
      filename: The file; None keeps it in memory.
      write_value: Whether to write the file; False only reads it.
    """

    def __init__(self, initial_value: Any, filename: storage.PathLike | None, write_value: bool = True) -> None:
        self._path = None if filename is None else Path(filename)
        self._writes = write_value and self._path is not None
        self._value = initial_value
        if self._path is not None and self._path.exists():
            self._value = storage.read_json(self._path)
        elif self._writes:
            self.write(initial_value)

    def read(self) -> Any:
        """Returns the value."""
        return self._value

    def write(self, value: Any) -> None:
        """Sets the value; the file has the old one or the new one at any instant."""
        self._value = value
        if self._path is not None and self._writes:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            storage.write_json(self._path, value)
