"""Names for a series of exports: `model-0`, `model-1`, … of which the newest stay."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from everstep import storage
from everstep.errors import UsageError


class ExportFileManager:
    """Gives out names and removes the oldest exports.

        files = ExportFileManager("runs/demo/served/model", max_to_keep=2)
        files.next_name()   # runs/demo/served/model-0, and model-1 the next time, also after a restart

    A resumed run repeats what its last checkpoint does not know of. With `next_id_fn=lambda: trainer.global_step` it
    then writes under the same name again; numbers that are counted up go on.

    Args:
      base_name: Folder and beginning of the names.
      max_to_keep: How many of those with the highest numbers stay; a negative number keeps all.
      next_id_fn: Returns the number of the next name; by default they are counted up from what is there.
      subdirectory: A folder inside each of them that `next_name` names. Only these are removed: what else is beside
        them stays.

    Raises:
      UsageError: `max_to_keep` is 0: what is written would be gone at once.
    """

    def __init__(
        self,
        base_name: storage.PathLike,
        max_to_keep: int = 5,
        next_id_fn: Callable[[], Any] | None = None,
        subdirectory: str | None = None,
    ) -> None:
        if max_to_keep == 0:
            raise UsageError(
                "which would keep nothing", key="max_to_keep", received=0, remedy="at least 1, or -1 to keep all"
            )
        self._base, self._max_to_keep = Path(base_name), max_to_keep
        self._next_id, self._subdirectory = next_id_fn or self._count, subdirectory or ""
        self._next = 0

    @property
    def managed_files(self) -> list[str]:
        """The names that are there, the lowest number first."""
        return [str(path / self._subdirectory) for _, path in self._found()]

    def next_name(self) -> str:
        """Returns the name for the next export; its folder exists."""
        self._base.parent.mkdir(parents=True, exist_ok=True)
        return str(self._base.with_name(f"{self._base.name}-{int(self._next_id())}") / self._subdirectory)

    def clean_up(self) -> None:
        """Removes those with the lowest numbers, and what a killed process left half done."""
        if self._max_to_keep > 0:
            for _, path in self._found()[: -self._max_to_keep]:
                _remove(path / self._subdirectory)
                if path.is_dir() and not any(path.iterdir()):
                    path.rmdir()
        for path in self._base.parent.glob(f".everstep-*-{_literal(self._base.name)}-*"):
            _remove(path)

    def _count(self) -> int:
        number = max([self._next, *(number + 1 for number, _ in self._found())])
        self._next = number + 1
        return number

    def _found(self) -> list[tuple[int, Path]]:
        name = re.compile(rf"{re.escape(self._base.name)}-([0-9]+)")
        entries = self._base.parent.iterdir() if self._base.parent.is_dir() else ()
        there = [(int(found[1]), path) for path in entries if (found := name.fullmatch(path.name))]
        return sorted((number, path) for number, path in there if (path / self._subdirectory).exists())


def _remove(path: Path) -> None:
    if path.is_dir():
        storage.remove_directory(path)
    else:
        path.unlink(missing_ok=True)


def _literal(name: str) -> str:
    """Returns a name as a pattern that matches nothing but it."""
    return re.sub(r"([*?[])", r"[\1]", name)
