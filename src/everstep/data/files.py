"""Which files a configuration names: paths, globs, lists of those, URLs of object stores; compressed files unpacked."""

import bz2
import glob
import gzip
import lzma
import os
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import filelock

from everstep import storage
from everstep.checkpoint.remote import cache, checked, is_known, is_url, local_files
from everstep.errors import Problem, UsageError
from everstep.storage import is_temporary

Patterns = str | Sequence[str]


def find_files(patterns: Patterns, key: str = "input_path", *, folders: bool = False) -> list[str]:
    """Returns the files that the patterns match, sorted by their names, each once.

    Files in a store are fetched first; the result has their local paths. Drafts that a killed writer left are no match.

    Args:
      patterns: A path, a glob, several of them separated by commas, or a list of those.
      key: The key of the configuration that has the patterns, for errors.
      folders: Whether a folder may be matched, too.

    Raises:
      UsageError: There is no pattern, a pattern matches nothing, or a file is empty, a folder or not readable.
    """
    found: dict[str, str] = {}  # local paths by name
    for pattern in _patterns(patterns, key):
        if is_url(pattern) and not is_known(pattern):
            checked(pattern, key)  # names the nearest kind of store
        matches = local_files(pattern, key) if is_known(pattern) else _matches(pattern)
        if not matches:
            raise UsageError(
                "no file matches", key=key, received=pattern, remedy="paths are relative to the working directory"
            )
        found.update(matches)
    problems = [problem for name in sorted(found) if (problem := _unusable(name, found[name], key, folders))]
    if problems:
        raise UsageError(problems)
    return [found[name] for name in sorted(found)]


def _patterns(patterns: Patterns, key: str) -> list[str]:
    listed = [patterns] if isinstance(patterns, str) else list(patterns)
    if not all(isinstance(entry, str) for entry in listed):
        raise UsageError("expected a path, a glob, or a list of those", key=key, received=patterns)
    globs = [part.strip() for entry in listed for part in entry.split(",") if part.strip()]
    if not globs:
        raise UsageError("names no record files", key=key, remedy="name a path or a glob such as 'data/*.tfrecord'")
    return globs


def _matches(pattern: str) -> dict[str, str]:
    pattern = os.path.expanduser(pattern)
    if os.path.exists(pattern):
        return {pattern: pattern}
    return {file: file for file in glob.glob(pattern, recursive=True) if not is_temporary(file)}


def _unusable(name: str, file: str, key: str, folders: bool) -> Problem | None:
    """Returns why a file cannot be read; None if it can."""
    if os.path.isdir(file):
        remedy = f"name its files, such as {name.rstrip('/') + '/*'!r}"
        return None if folders else Problem(key, "is a folder", received=name, remedy=remedy)
    try:
        if not os.stat(file).st_size:
            return Problem(key, "is empty, 0 bytes", received=name, remedy="write it again, or remove it")
        with open(file, "rb"):
            return None
    except OSError as error:
        return Problem(key, f"cannot be read: {error.strerror}", received=name)


_OPENERS: dict[str, Callable[..., Any]] = {".gz": gzip.open, ".xz": lzma.open, ".bz2": bz2.open}

COMPRESSIONS = tuple(_OPENERS)
"""What the names of files end with that `unpacked` unpacks."""


def unpacked(file: str, key: str = "input_path") -> str:
    """Returns the path of a file without compression, which is made once, below `$EVERSTEP_CACHE_DIR`.

    Args:
      file: A file whose name ends with one of `COMPRESSIONS`.
      key: The key of the configuration that names it, for errors.

    Raises:
      UsageError: The file is damaged, or there is no place for its content.
    """
    name, suffix = os.path.splitext(os.path.basename(file))
    found = os.stat(file)
    identity = cache.key(f"{os.path.abspath(file)} {found.st_size} {found.st_mtime_ns}")
    target = cache.root() / "unpacked" / identity / name
    if target.exists():
        return str(target)
    storage.prepare_directory(target.parent)
    with filelock.FileLock(target.with_name(".lock")):
        try:
            if not target.exists():
                with storage.atomic_path(target) as temporary:
                    _unpack(_OPENERS[suffix.lower()], file, temporary)
        except (EOFError, lzma.LZMAError, OSError) as error:  # gzip's and bz2's errors are an OSError
            raise UsageError(f"cannot be unpacked: {error}", key=key, received=file) from None
    return str(target)


def _unpack(opener: Callable[..., Any], file: str, target: Path) -> None:
    with opener(file, "rb") as source, open(target, "xb") as content:
        shutil.copyfileobj(source, content, 1 << 20)
        content.flush()
        os.fsync(content.fileno())
