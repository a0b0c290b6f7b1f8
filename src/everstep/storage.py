"""Atomic file operations: everything that must survive a kill is written here.

A reader sees the old content of a file or the new one, never half of it. Paths are local; `checkpoint.remote` mirrors
them to object stores.
"""

import concurrent.futures
import contextlib
import json
import math
import os
import shutil
import uuid
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from everstep.errors import UsageError

PathLike = str | os.PathLike[str]

_SYNCED_AT_ONCE = 16


def write_bytes(path: PathLike, data: bytes) -> None:
    """Writes `data` to `path` atomically and durably.

    The bytes go to a temporary file in the same directory, which is synced to disk and then renamed.

    Args:
      path: The file; its directory must exist.
      data: The whole new content.
    """
    with atomic_path(path) as temporary, open(temporary, "xb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def write_files(files: Mapping[Path, bytes]) -> None:
    """Writes several files, each atomically and all of them durably, in the time of one: they are synced together.

    Args:
      files: The whole new content of each file; their directories must exist.
    """
    temporary = {path: _temporary_name(path) for path in files}
    try:
        for path, data in files.items():
            temporary[path].write_bytes(data)
        sync(temporary.values())
        for path, written in temporary.items():
            os.replace(written, path)
        sync({path.parent for path in files})
    finally:
        for written in temporary.values():
            _remove(written)


def write_text(path: PathLike, text: str) -> None:
    """Writes `text` as UTF-8 to `path`, atomically (see `write_bytes`)."""
    write_bytes(path, text.encode("utf-8"))


def write_json(path: PathLike, value: Any) -> None:
    """Writes `value` as JSON (see `json_text`) to `path`, atomically (see `write_bytes`)."""
    write_text(path, json_text(value) + "\n")


def json_text(value: Any) -> str:
    """Returns `value` as strict JSON, which every parser reads.

    NumPy values become plain numbers and lists. NaN and the infinities, which JSON cannot express, become the strings
    "NaN", "Infinity" and "-Infinity" (`float` reads them back).
    """
    return json.dumps(_plain(value), indent=2, ensure_ascii=False, allow_nan=False)


def read_json(path: PathLike) -> Any:
    """Returns the content of a JSON file.

    Raises:
      UsageError: The file does not exist, or is not JSON; `key` is its path.
    """
    try:
        return json.loads(Path(path).read_text("utf-8"))
    except OSError as error:
        raise UsageError(f"cannot be read: {error.strerror}", key=os.fspath(path)) from error
    except ValueError as error:
        raise UsageError(f"is not valid JSON: {error}", key=os.fspath(path)) from error


def prepare_directory(path: PathLike, key: str = "") -> bool:
    """Creates a directory if needed, and checks that it can be written to.

    The check writes a file: root ignores permission bits, and a read-only mount does not show in them.

    Args:
      path: The directory.
      key: The argument that it was passed as, for errors.

    Returns:
      Whether the directory is new.

    Raises:
      UsageError: The directory cannot be created or written to; `received` is the path in the way.
    """
    directory = Path(path)
    try:
        new = not directory.exists()
        directory.mkdir(parents=True, exist_ok=True)
        probe = _temporary_name(directory / "probe")
        probe.touch()
        probe.unlink()
    except (FileExistsError, NotADirectoryError) as error:
        file = next((path for path in (directory, *directory.parents) if path.is_file()), directory)
        raise UsageError("is a file", key=key, received=str(file), remedy="choose a directory") from error
    except OSError as error:
        raise UsageError(
            f"cannot be written to: {error.strerror}",
            key=key,
            received=str(directory),
            remedy="choose a directory you may write to",
        ) from error
    return new


def remove_directory(path: PathLike) -> None:
    """Removes a directory and its content, if it exists.

    The directory is renamed first: a kill in the middle leaves no half-empty directory under the old name.
    """
    renamed = _temporary_name(Path(path))
    try:
        os.rename(path, renamed)
    except FileNotFoundError:
        return
    _remove(renamed)


@contextlib.contextmanager
def atomic_path(path: PathLike) -> Iterator[Path]:
    """Yields a temporary path beside `path`; what the block writes there is renamed to `path` at its end.

    For files and directories that another library writes. The temporary name has the same suffix. If the block fails,
    nothing remains. A directory replaces an existing one.

    Example:
      with storage.atomic_path("export/model.keras") as temporary:
          model.save(temporary)
    """
    target = Path(path)
    temporary = _temporary_name(target)
    try:
        yield temporary
        before = _temporary_name(target)
        if temporary.is_dir() and target.is_dir():
            os.rename(target, before)  # a directory cannot be replaced in one rename; the old one is removed last
        os.replace(temporary, target)
        _sync_directory(target.parent)
        _remove(before)
    finally:
        _remove(temporary)


def is_temporary(path: PathLike) -> bool:
    """Returns whether a path is a temporary one of this module: never content, but what a killed process left."""
    return Path(path).name.startswith(".everstep-")


def _temporary_name(path: Path) -> Path:
    return path.with_name(f".everstep-{uuid.uuid4().hex[:12]}-{path.name}")


def _remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)


def sync(paths: Iterable[PathLike]) -> None:
    """Makes files durable, and the names in folders: all at once, since a disk commits many in the time of one.

    Raises:
      OSError: A file cannot be synced.
    """
    with concurrent.futures.ThreadPoolExecutor(_SYNCED_AT_ONCE, "everstep-sync") as threads:
        for _ in threads.map(_sync, map(Path, paths)):
            pass


def _sync(path: Path) -> None:
    if path.is_dir():
        _sync_directory(path)
        return
    with open(path, "rb") as file:
        os.fsync(file.fileno())


def _sync_directory(path: Path) -> None:
    """Makes the names in the directory durable: of new files, and after a rename."""
    with contextlib.suppress(OSError):  # some platforms cannot open a directory
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def _plain(value: Any) -> Any:
    """Returns `value` with only the types that JSON has."""
    if isinstance(value, Mapping):
        return {str(k): _plain(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(v) for v in value]
    if hasattr(value, "tolist"):
        return _plain(value.tolist())
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    return str(value) if isinstance(value, os.PathLike) else value
