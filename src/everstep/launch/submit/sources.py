"""The code of a run: copied with a limit, and told apart by a digest."""

import hashlib
import os
import shutil
import subprocess
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from everstep.errors import UsageError
from everstep.run.launcher import RECORD

_MAX_BYTES = 64 * 2**20
_MAX_FILES = 10_000
_MAX_DIFF = 8 * 2**20
_SKIPPED = {"__pycache__", "node_modules", "site-packages", "mlruns"}
_GIT_SECONDS = 30.0

Wanted = Callable[[Path], bool]


def is_any(path: Path) -> bool:
    """Every file: for a folder of classes, which may have vocabularies and the like beside them."""
    return True


def is_python(path: Path) -> bool:
    """Python files only: for a folder that may hold anything."""
    return path.suffix == ".py"


def source_files(root: Path, wanted: Wanted, without: Iterable[Path] = ()) -> list[Path]:
    """Returns the files below `root`, in a fixed order, that make up its code.

    Hidden names, caches, virtual environments and the folders in `without` are left out; links are followed.

    Raises:
      UsageError: There is more of it than a submission copies.
    """
    found, size = [], 0
    for path in _walk(root, {folder.resolve() for folder in without}):
        if wanted(path):
            found.append(path)
            size += path.stat().st_size
        if len(found) > _MAX_FILES or size > _MAX_BYTES:
            raise UsageError(_too_much(root, found))
    return found


def _walk(folder: Path, without: set[Path], above: tuple[Path, ...] = ()) -> Iterator[Path]:
    """Yields files, those of a folder before those of the folders in it; a link to a folder above ends there."""
    here = folder.resolve()
    if here in without or here in above or (above and _is_foreign(folder)):
        return
    entries = sorted(entry for entry in folder.iterdir() if not entry.name.startswith("."))
    yield from (entry for entry in entries if entry.is_file() and entry.suffix != ".pyc")
    for entry in entries:
        if entry.is_dir() and entry.name not in _SKIPPED:
            yield from _walk(entry, without, (*above, here))


def _is_foreign(folder: Path) -> bool:
    """Tells whether a folder is a virtual environment, or the snapshot of a submission."""
    return (folder / "pyvenv.cfg").is_file() or (folder / RECORD).is_file()


def _too_much(root: Path, found: list[Path]) -> str:
    largest = max(found, key=lambda path: path.stat().st_size)
    return (
        f"{str(root)!r} has more than a submission copies ({_MAX_FILES} files, {_MAX_BYTES >> 20} MiB); "
        f"the largest file is {str(largest.relative_to(root))!r}: keep data out of the code's folder"
    )


def digest(root: Path, files: Iterable[Path]) -> str:
    """Returns a sha256 over names and contents."""
    sha = hashlib.sha256()
    for path in files:
        name, data = os.fsencode(path.relative_to(root)), path.read_bytes()
        sha.update(b"%d %d " % (len(name), len(data)) + name + data)
    return sha.hexdigest()


def copy(root: Path, files: Iterable[Path], target: Path) -> None:
    """Copies files below `root` to the same places below `target`."""
    target.mkdir(parents=True)
    for path in files:
        place = target / path.relative_to(root)
        place.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(path, place)


def uncommitted(root: Path) -> bytes:
    """Returns what differs from the last commit, as git shows it; empty without git, or where nothing does."""
    command = ["git", "-C", os.fspath(root), "diff", "--no-color", "--no-ext-diff", "HEAD", "--", "."]
    environment = {**os.environ, "GIT_OPTIONAL_LOCKS": "0"}
    try:
        done = subprocess.run(command, capture_output=True, timeout=_GIT_SECONDS, env=environment)
    except (OSError, subprocess.SubprocessError):
        return b""
    if done.returncode != 0:
        return b""
    if len(done.stdout) > _MAX_DIFF:
        return b"the changes since the last commit are larger than %d MiB\n" % (_MAX_DIFF >> 20)
    return done.stdout
