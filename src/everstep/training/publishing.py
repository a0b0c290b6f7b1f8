"""What a job leaves to others: copied to `artifacts_dir`, each piece whole or not there."""

import contextlib
import shutil
from collections.abc import Iterator
from pathlib import Path

from everstep import storage
from everstep.errors import UsageError


@contextlib.contextmanager
def place_for(target: str) -> Iterator[None]:
    """Makes sure, before anything is done in the block, that artifacts can be written; empty for none.

    A folder made for them goes again where the block refuses its input.

    Raises:
      UsageError: They cannot.
    """
    if _is_url(target):
        raise UsageError(f"artifacts_dir: received {target!r}, but artifacts go to local directories only: name one")
    new = bool(target) and storage.prepare_directory(target)
    try:
        yield
    except UsageError:
        if new:
            with contextlib.suppress(OSError):  # somebody has put something there
                Path(target).rmdir()
        raise


def publish(source: Path, target: str) -> None:
    """Copies a file or folder of this machine to a place where others look, in one piece.

    This is the one way out for artifacts; a store of another kind takes over here, and in `place_for`.

    Args:
      source: What there is.
      target: Its name there; what had the name before is replaced when the copy is complete.
    """
    place = Path(target)
    _tidy(place.parent)
    with storage.atomic_path(place) as temporary:
        if source.is_dir():
            shutil.copytree(source, temporary)
        else:
            shutil.copyfile(source, temporary)


def _is_url(target: str) -> bool:
    return "://" in target


def _tidy(folder: Path) -> None:
    """Removes what a killed process left half copied."""
    for entry in folder.iterdir():
        if storage.is_temporary(entry):
            with contextlib.suppress(FileNotFoundError):
                storage.remove_directory(entry) if entry.is_dir() else entry.unlink()
