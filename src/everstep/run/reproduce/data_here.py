"""Whether files that a run has named as its data are what they were, without doing it again."""

import hashlib
from collections.abc import Iterator, Mapping
from pathlib import Path

from everstep.run.reproduce.causes import DATA, Cause
from everstep.run.reproduce.evidence import Evidence


def changed(original: Evidence, project: Path) -> list[Cause]:
    """Returns which files have other content than the run has recorded; nothing of folders, stores and arrays.

    Args:
      original: The run.
      project: The folder that paths are relative to.
    """
    named = [name for name, path, sha in _files(original) if _other(project / path, sha)]
    return [Cause(DATA, f"{name} has other content") for name in named]


def gone(original: Evidence, project: Path) -> list[Cause]:
    """Returns which files, of those that the run has recorded, are not there any more."""
    named = [(name, (project / path).absolute()) for name, path, _ in _files(original)]
    return [Cause(DATA, f"{name} is gone: {str(path)!r}") for name, path in named if not path.exists()]


def _files(original: Evidence) -> Iterator[tuple[str, str, str]]:
    for name, told in original.record["data"].items():
        if isinstance(told, Mapping) and isinstance(path := told.get("path"), str) and "://" not in path:
            yield name, path, str(told.get("sha256"))


def _other(path: Path, sha: str) -> bool:
    if not path.is_file():
        return False
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest() != sha
