"""Fingerprints of the files that data is read from: their content as far as that is quick, else samples of it."""

import hashlib
import json
import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

MAX_BYTES = 256 * 2**20
"""So much content is read to its last byte, over all files; half a second's work."""

MAX_SAMPLED = 1000
"""Of so many further files a few places are read; of the rest the size is all that counts."""

MAX_NAMED = 200
"""A folder of more files has one fingerprint for all of them."""

_PIECE, _PIECES = 2**16, 4


def fingerprints(files: Iterable[str]) -> dict[str, dict[str, Any]]:
    """Returns what is in files, by their names without folders: data may lie elsewhere tomorrow.

    Returns:
      For each `bytes`, and `sha256` of all of it, or `sampled`, that of four places in it. None of the two where there
      are too many files, or one cannot be read.
    """
    found: dict[str, dict[str, Any]] = {}
    for file, told in _contents(files):
        found[_name(file, found)] = told
    return found


def of_folder(folder: Path) -> dict[str, Any]:
    """Returns what is in a folder: each file's fingerprint by its path in it; of many, one for all: `sha256`."""
    found = {os.path.relpath(file, folder): told for file, told in _contents(_below(folder))}
    if len(found) <= MAX_NAMED:
        return found
    whole = all("sha256" in told for told in found.values())
    digest = hashlib.sha256(json.dumps(sorted(found.items())).encode()).hexdigest()
    size = sum(told["bytes"] for told in found.values())
    return {"files": len(found), "bytes": size, "sha256" if whole else "sampled": digest}


def _below(folder: Path) -> Iterator[str]:
    for directory, names, files in os.walk(folder):
        names[:] = sorted(name for name in names if not name.startswith("."))
        yield from (os.path.join(directory, name) for name in sorted(files) if not name.startswith("."))


def _contents(files: Iterable[str]) -> Iterator[tuple[str, dict[str, Any]]]:
    left, sampled = MAX_BYTES, MAX_SAMPLED
    for file in files:
        size = _size(file)
        if size <= left:
            left -= size
            told = {"sha256": _whole(file)}
        else:
            sampled -= 1
            told = {"sampled": _sample(file, size)} if sampled >= 0 else {}
        yield file, {"bytes": size, **{key: value for key, value in told.items() if value}}


def _name(file: str, taken: Iterable[str]) -> str:
    """Returns a name that is not taken: two folders may have files of the same one."""
    name = os.path.basename(file)
    while name in taken:
        name += "'"
    return name


def _size(file: str) -> int:
    try:
        return os.path.getsize(file)
    except OSError:
        return 0


def _whole(file: str) -> str | None:
    try:
        with open(file, "rb") as opened:
            return hashlib.file_digest(opened, "sha256").hexdigest()
    except OSError:
        return None


def _sample(file: str, size: int) -> str | None:
    sha = hashlib.sha256()
    try:
        with open(file, "rb") as opened:
            for number in range(_PIECES):
                opened.seek(max(size - _PIECE, 0) * number // (_PIECES - 1))
                sha.update(opened.read(_PIECE))
    except OSError:
        return None
    return sha.hexdigest()
