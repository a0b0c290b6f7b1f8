"""What made a run: the code, the machine, the data. Observed, never imported."""

import hashlib
import importlib.metadata
import os
import platform
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from everstep import __version__, storage
from everstep.run import code_diff, surroundings
from everstep.run.digest import array_bytes
from everstep.run.submitted import submitted_code

_PACKAGES = ("everstep", "keras", "jax", "jaxlib", "tensorflow", "torch", "numpy")
_SKIPPED = {"__pycache__", "node_modules", "site-packages", "build", "dist", "venv", "env"}
_MAX_FILES = 2000
_MAX_BYTES = 32 * 2**20
_GIT_SECONDS = 10.0


def environment() -> dict[str, Any]:
    """Returns Python, platform, processors, the versions of what computes, and variables that change how it does."""
    return {
        "python": platform.python_version(),
        "platform": platform.platform(),
        "machine": platform.machine(),
        "processor": surroundings.processor(),
        "cpu_count": os.cpu_count(),
        "gpus": surroundings.gpus(),
        "settings": surroundings.settings(),
        "packages": {name: version for name in _PACKAGES if (version := _version(name))},
    }


def code_version(path: storage.PathLike) -> dict[str, Any]:
    """Returns which code is at `path`.

    Returns:
      `commit`, `dirty` (a tracked file changed, or a Python file nobody added) and `changes` (a digest of what has)
      inside a git work tree; elsewhere they are None and `sources` is a digest of the Python files below `path`. Of a
      run that was submitted, the version that was.
    """
    if (told := submitted_code(path)) is not None:
        return told
    commit = _git(path, "rev-parse", "HEAD")
    if commit is None:
        return {"commit": None, "dirty": None, "changes": None, "sources": _sources_digest(Path(path))}
    changed = _git(path, "status", "--porcelain", "--untracked-files=no")
    added = _git(path, "ls-files", "--others", "--exclude-standard", "*.py")
    dirty = None if changed is None or added is None else bool(changed or added)
    return {"commit": commit, "dirty": dirty, "changes": code_diff.digest(path) if dirty else None, "sources": None}


def code_change(before: Mapping[str, Any], now: Mapping[str, Any]) -> str:
    """Returns how what `code_version` returned has changed, as `commit 1f2e3d4c5b -> commit 0a1b2c3d4e`.

    Empty where it has not, or where nothing is known of before.
    """
    keys = ("commit", "dirty", "changes", "sources")
    same = not before or all(before.get(key) == now.get(key) for key in keys)
    return "" if same else f"{_code_words(before)} -> {_code_words(now)}"


def _code_words(code: Mapping[str, Any]) -> str:
    if not code.get("commit"):
        return f"sources {str(code.get('sources'))[:10]}"
    changes = f" with changes {(code.get('changes') or '')[:10]}".rstrip() if code.get("dirty") else ""
    return f"commit {code['commit'][:10]}{changes}"


def fingerprint(arrays: Any) -> dict[str, dict[str, Any]]:
    """Returns shape, dtype and sha256 of every array in a nested structure, by its path in it.

    Example:
      fingerprint({"x": x, "y": (a, b)})  # keys "x", "y/0", "y/1"
    """
    return {path: _describe(np.asarray(leaf)) for path, leaf in _leaves(arrays, ())}


def _version(package: str) -> str | None:
    if package == "everstep":
        return __version__
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def _git(path: storage.PathLike, *arguments: str) -> str | None:
    """Returns what git prints, or None where there is no git, no work tree, no commit or no answer."""
    try:
        result = subprocess.run(
            ["git", "-C", os.fspath(path), *arguments],
            capture_output=True,
            text=True,
            timeout=_GIT_SECONDS,
            env={**os.environ, "GIT_OPTIONAL_LOCKS": "0"},
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return result.stdout.strip() if result.returncode == 0 else None


def _sources_digest(root: Path) -> str:
    """Returns the digest of the first sources below `root`; bounded, for `root` may be a home directory."""
    sha, left = hashlib.sha256(), _MAX_BYTES
    for number, source in enumerate(_sources(root)):
        if number >= _MAX_FILES or left <= 0:
            break
        data = _content(source)
        left -= len(data)
        name = os.fsencode(source.relative_to(root))
        sha.update(b"%d %d " % (len(name), len(data)) + name + data)
    return sha.hexdigest()


def _sources(root: Path) -> Iterator[Path]:
    """Yields the Python files below `root` in a fixed order, without hidden, installed and built ones."""
    for directory, names, files in os.walk(root):
        names[:] = sorted(name for name in names if not name.startswith(".") and name not in _SKIPPED)
        yield from (Path(directory, name) for name in sorted(files) if name.endswith(".py"))


def _content(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:
        return b""


def _leaves(value: Any, path: tuple[str, ...]) -> Iterator[tuple[str, Any]]:
    if isinstance(value, Mapping):
        for key in sorted(value, key=str):
            yield from _leaves(value[key], (*path, str(key)))
    elif isinstance(value, Sequence) and not isinstance(value, str | bytes):
        for index, item in enumerate(value):
            yield from _leaves(item, (*path, str(index)))
    elif value is not None:
        yield "/".join(path), value


def _describe(array: np.ndarray) -> dict[str, Any]:
    if array.dtype.kind in "OT":
        array = array.astype(str)
    data = hashlib.sha256(array_bytes(array)).hexdigest()
    return {"shape": list(array.shape), "dtype": array.dtype.name, "sha256": data}
