"""`artifacts_dir`, local or in a store: the exported model and `history.csv`, each complete or absent.

What users put beside the exported files stays, also inside `saved_model/` (TensorFlow Serving reads `assets.extra/`).
"""

import contextlib
import shutil
from collections.abc import Iterable, Iterator
from pathlib import Path

from everstep import storage
from everstep.checkpoint.remote import Store, StoreError, checked, is_url, require_writable
from everstep.checkpoint.remote import publish as upload
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
    new = bool(target) and not is_url(target) and storage.prepare_directory(target, "artifacts_dir")
    try:
        yield
    except UsageError:
        if new:
            with contextlib.suppress(OSError):  # it is no longer empty
                Path(target).rmdir()
        raise


def publish(source: Path, target: str) -> list[str]:
    """Copies a file or folder of this machine to `artifacts_dir`, in one piece; returns the names of its files there.

    Args:
      source: What to copy.
      target: Its path there; an existing one is replaced when the copy is complete. In a store, where a
        folder cannot be replaced at once, the former one is removed first. What else is in an existing folder stays:
        files and folders at its top level with names that `source` does not have.

    Raises:
      TrainingError: The store does not accept it.
    """
    if is_url(target):
        upload(source, checked(target, "artifacts_dir"), keep_others=True)
    else:
        _replace(source, Path(target))
    name = target.rpartition("/")[2]
    inside = sorted(path.relative_to(source).as_posix() for path in source.rglob("*") if path.is_file())
    return [f"{name}/{path}" for path in inside] if source.is_dir() else [name]


def _replace(source: Path, target: Path) -> None:
    for entry in target.parent.iterdir():  # incomplete copies of killed processes
        if storage.is_temporary(entry):
            with contextlib.suppress(FileNotFoundError):
                storage.remove_directory(entry) if entry.is_dir() else entry.unlink()
    with storage.atomic_path(target) as temporary:
        if not source.is_dir():
            shutil.copyfile(source, temporary)
            return
        shutil.copytree(source, temporary)
        for entry in target.iterdir() if target.is_dir() else ():
            if not (source / entry.name).exists():
                copy = shutil.copytree if entry.is_dir() else shutil.copy2
                copy(entry, temporary / entry.name)


def missing(artifacts: str, names: Iterable[str]) -> list[str]:
    """Returns which files with these names are not in `artifacts_dir`; all of them if a store cannot be read."""
    if not is_url(artifacts):
        return [name for name in names if not Path(artifacts, name).is_file()]
    try:
        there = Store(checked(artifacts, "artifacts_dir")).listing()
    except StoreError:
        return list(names)
    return [name for name in names if name not in there]
