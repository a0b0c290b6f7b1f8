"""The user's own files that a run has imported: which they are, and which of them have changed since."""

import contextlib
import hashlib
import os
import sys
import sysconfig
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from everstep import redaction, storage
from everstep.errors import is_own_file
from everstep.run.environments import code_change
from everstep.run.parent_process import submitted_code

CODE_FILES = "files"
"""The key of the files in the `code` of a record: sha256 by path, which is relative to the folder of the code."""

_MOST_NAMED = 3

_LIBRARIES = tuple(
    folder + os.sep
    for folder in (*map(sysconfig.get_path, ("stdlib", "purelib", "platlib")), str(Path(__file__).parents[1]))
)
"""Where nearly all modules are; of the others, every file is looked at."""


def imported_files(root: storage.PathLike) -> dict[str, str]:
    """Returns the sha256 of each file that this process has imported and that is no library's, by its path.

    A file elsewhere than below `root` and the folders of `sys.path` is none of the user's: TensorFlow and PyTorch
    generate modules in temporary folders.
    """
    folders = [Path(folder).resolve() for folder in {os.fspath(root), *sys.path} if os.path.isdir(folder)]
    named = {getattr(module, "__file__", None) for module in [*sys.modules.values()]}
    files = {file for file in named if isinstance(file, str) and not file.startswith(_LIBRARIES)}
    own = [file for file in files if is_own_file(file) and any(map(Path(file).resolve().is_relative_to, folders))]
    return files_now(sorted(_path_from(file, root) for file in own), root)


def files_now(names: Any, root: storage.PathLike) -> dict[str, str]:
    """Returns the sha256 of files as they are now, by their paths; of one that is gone, nothing."""
    found = {}
    for name in names:
        with contextlib.suppress(OSError):
            found[name] = hashlib.sha256(Path(root, name).read_bytes()).hexdigest()
    return found


def with_imported_files(code: Mapping[str, Any], root: storage.PathLike) -> dict[str, Any]:
    """Returns the version of the code at `root` with the files that this process has imported.

    None of a submission, which has a copy of its own: there the version of the submission counts.
    """
    if submitted_code(root) is not None:
        return {**code, CODE_FILES: None}
    return {**code, CODE_FILES: {**imported_files(root), **(code.get(CODE_FILES) or {})}}


def with_files_of(before: Mapping[str, Any], code: Mapping[str, Any], root: storage.PathLike) -> dict[str, Any]:
    """Returns the version of the code at `root` with the files that an earlier version names, to compare the two."""
    files = None if submitted_code(root) is not None else before.get(CODE_FILES)
    return {**code, CODE_FILES: None if files is None else files_now(files, root)}


def changed_files(before: Mapping[str, Any], now: Mapping[str, Any]) -> list[str] | None:
    """Returns the files that differ between two versions of the code; None if one of them does not name its files."""
    old, new = before.get(CODE_FILES), now.get(CODE_FILES)
    if old is None or new is None:
        return None
    hidden = {name for name, digest in old.items() if redaction.is_redacted(digest)}  # a file called as a secret is
    return [name for name in sorted({*old, *new} - hidden) if old.get(name) != new.get(name)]


def imported_change(before: Mapping[str, Any], now: Mapping[str, Any]) -> str:
    """Returns the change between two versions of the code on one line: `train.py`; empty if there is none.

    Where the files that were imported are known, only they count; else it is `code_change`.
    """
    names = changed_files(before, now)
    return code_change(before, now) if names is None else listed_files(names)


def listed_files(names: list[str]) -> str:
    """Returns the names of files on one line."""
    more = len(names) - _MOST_NAMED
    return ", ".join(names[:_MOST_NAMED]) + (f" and {more} more" if more > 0 else "")


def _path_from(file: str, root: storage.PathLike) -> str:
    path, root = Path(file).resolve(), Path(root).resolve()
    return str(path.relative_to(root)) if path.is_relative_to(root) else str(path)
