"""`artifacts_dir`, local or in a store: the exported model and `history.csv`, each complete or absent."""

import contextlib
import shutil
from collections.abc import Iterator
from pathlib import Path

from everstep import storage
from everstep.checkpoint.remote.files import publish as upload
from everstep.checkpoint.remote.files import require_writable
from everstep.checkpoint.remote.urls import checked, is_url
from everstep.errors import UsageError


@contextlib.contextmanager
def writable(target: str) -> Iterator[None]:
    """Checks, before the block, that artifacts can be written to `target`; empty for none.

    A folder created for them is removed where the block refuses its input; in a store nothing is left.

    Raises:
      UsageError: They cannot be written.
    """
    if is_url(target):
        require_writable(checked(target, "artifacts_dir"), "artifacts_dir")
    new = bool(target) and not is_url(target) and storage.prepare_directory(target)
    try:
        yield
    except UsageError:
        if new:
            with contextlib.suppress(OSError):  # it is no longer empty
                Path(target).rmdir()
        raise


def publish(source: Path, target: str) -> None:
    """Copies a file or folder of this machine to `artifacts_dir`, in one piece.

    Args:
      source: What to copy.
      target: Its path there; an existing one is replaced when the copy is complete. In a store, where a
        folder cannot be replaced at once, the former one is removed first.

    Raises:
      TrainingError: The store does not accept it.
    """
    if is_url(target):
        upload(source, checked(target, "artifacts_dir"))
        return
    place = Path(target)
    for entry in place.parent.iterdir():  # incomplete copies of killed processes
        if storage.is_temporary(entry):
            with contextlib.suppress(FileNotFoundError):
                storage.remove_directory(entry) if entry.is_dir() else entry.unlink()
    with storage.atomic_path(place) as temporary:
        if source.is_dir():
            shutil.copytree(source, temporary)
        else:
            shutil.copyfile(source, temporary)
