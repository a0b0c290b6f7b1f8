"""Files of a run: the few file operations that everstep needs.

Everything that must survive a kill is written here, and written atomically: a reader sees the old content or the new
one, never half of it. Paths are local; `checkpoint.remote` mirrors them to object stores.
"""

import contextlib
import json
import math
import os
import shutil
import uuid
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from everstep.errors import UsageError

PathLike = str | os.PathLike[str]


def write_bytes(path: PathLike, data: bytes) -> None:
    """Writes `data` to `path` atomically and durably.

    The bytes go to a temporary file in the same directory, reach the disk, and then take the name.

    Args:
      path: The file; its directory must exist.
      data: The whole new content.
    """
    with atomic_path(path) as temporary, open(temporary, "xb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def write_text(path: PathLike, text: str) -> None:
    """Writes `text` as UTF-8 to `path`, atomically (see `write_bytes`)."""
    write_bytes(path, text.encode("utf-8"))


def write_json(path: PathLike, value: Any) -> None:
    """Writes `value` as JSON (see `json_text`) to `path`, atomically (see `write_bytes`)."""
    write_text(path, json_text(value) + "\n")


def json_text(value: Any) -> str:
    """Returns `value` as strict JSON for every reader.

    NumPy values become plain numbers and lists, and NaN and the infinities, which JSON cannot spell, become the
    strings "NaN", "Infinity" and "-Infinity" (`float` reads them back).
    """
    return json.dumps(_plain(value), indent=2, ensure_ascii=False, allow_nan=False)


def read_json(path: PathLike) -> Any:
    """Returns the content of a JSON file.

    Raises:
      UsageError: There is no such file, or it is not JSON.
    """
    try:
        return json.loads(Path(path).read_text("utf-8"))
    except OSError as error:
        raise UsageError(f"cannot read {os.fspath(path)!r}: {error.strerror}") from error
    except ValueError as error:
        raise UsageError(f"{os.fspath(path)!r} is not valid JSON: {error}") from error


def prepare_directory(path: PathLike) -> bool:
    """Makes sure that `path` is a directory that can be written to.

    Permission bits say little (root ignores them, read-only mounts do not show in them), so it writes a file.

    Returns:
      Whether the directory is new.

    Raises:
      UsageError: It cannot be created or written to; the message names the path and the remedy.
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
        raise UsageError(f"{str(file)!r} is a file", remedy="choose a directory") from error
    except OSError as error:
        reason = f"cannot write to the directory {str(directory)!r}: {error.strerror}"
        raise UsageError(reason, remedy="choose one you may write to") from error
    return new


def remove_directory(path: PathLike) -> None:
    """Removes a directory and its content; a missing one is fine.

    It loses its name first: a kill in the middle leaves no half-empty directory where a whole one was.
    """
    doomed = _temporary_name(Path(path))
    try:
        os.rename(path, doomed)
    except FileNotFoundError:
        return
    _remove(doomed)


@contextlib.contextmanager
def atomic_path(path: PathLike) -> Iterator[Path]:
    """Yields a temporary name beside `path`; what was written there takes the name `path` at the end of the block.

    For files and directories that another library writes. It keeps the suffix, and when the block fails
    nothing remains. A directory replaces the one that had the name before.

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
            os.rename(target, before)  # a directory cannot be replaced in one move; the old one stays till the end
        os.replace(temporary, target)
        _sync_directory(target.parent)
        _remove(before)
    finally:
        _remove(temporary)


def is_temporary(path: PathLike) -> bool:
    """Returns whether a name is a temporary one of ours: what a killed process left, never content."""
    return Path(path).name.startswith(".everstep-")


def _temporary_name(path: Path) -> Path:
    return path.with_name(f".everstep-{uuid.uuid4().hex[:12]}-{path.name}")


def _remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)


def _sync_directory(path: Path) -> None:
    """Makes a rename durable, where the platform can open directories."""
    with contextlib.suppress(OSError):
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def _plain(value: Any) -> Any:
    """Returns `value` in terms of what JSON knows."""
    if isinstance(value, Mapping):
        return {str(k): _plain(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(v) for v in value]
    if hasattr(value, "tolist"):
        return _plain(value.tolist())
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    return str(value) if isinstance(value, os.PathLike) else value
