"""What a job leaves to others: copied to `artifacts_dir`, here or in a store, each piece whole or not there."""

import contextlib
import shutil
from collections.abc import Iterator
from pathlib import Path

from everstep import storage
from everstep.errors import UsageError
from everstep.remote.publishing import publish as upload
from everstep.remote.publishing import require_writable
from everstep.remote.urls import checked, is_url


@contextlib.contextmanager
def place_for(target: str) -> Iterator[None]:
    """Makes sure, before anything is done in the block, that artifacts can be written; empty for none.

    A folder made for them goes again where the block refuses its input; in a store nothing is left.

    Raises:
      UsageError: They cannot.
    """
    if is_url(target):
        require_writable(checked(target, "artifacts_dir"), "artifacts_dir")
    new = bool(target) and not is_url(target) and storage.prepare_directory(target)
    try:
        yield
    except UsageError:
        if new:
            with contextlib.suppress(OSError):  # somebody has put something there
                Path(target).rmdir()
        raise


def publish(source: Path, target: str) -> None:
    """Copies a file or folder of this machine to a place where others look, in one piece.

    Args:
      source: What there is.
      target: Its name there; what had the name before is replaced when the copy is complete. In a store, where a
        folder cannot be replaced at once, the former one is taken away first.

    Raises:
      TrainingError: A store did not take it.
    """
    if is_url(target):
        upload(source, checked(target, "artifacts_dir"))
        return
    place = Path(target)
    _tidy(place.parent)
    with storage.atomic_path(place) as temporary:
        if source.is_dir():
            shutil.copytree(source, temporary)
        else:
            shutil.copyfile(source, temporary)


def _tidy(folder: Path) -> None:
    """Removes what a killed process left half copied."""
    for entry in folder.iterdir():
        if storage.is_temporary(entry):
            with contextlib.suppress(FileNotFoundError):
                storage.remove_directory(entry) if entry.is_dir() else entry.unlink()
