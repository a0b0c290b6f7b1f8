"""The environment of a run: its code, packages, machine and data. Nothing is imported to find out."""

import contextlib
import functools
import hashlib
import importlib.metadata
import json
import os
import platform
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from everstep import __version__, redaction, storage
from everstep.checkpoint import array_bytes
from everstep.run.parent_process import submitted_code

REQUIREMENTS = "requirements.txt"
"""The file of a run directory that lists every installed package."""

CODE_DIFF = "code.diff"
"""The file of a run directory with the uncommitted changes."""

MAX_DIFF_BYTES = 5 * 2**20
"""A longer patch is not stored: it contains data."""

MAX_DATA_BYTES = 256 * 2**20
"""Data files are read completely up to this total size, which takes half a second."""

MAX_SAMPLED_FILES = 1000
"""The number of further files of which samples are read; of the others only the size."""

MAX_NAMED_FILES = 200
"""A folder with more files gets one fingerprint for all of them."""

_PACKAGES = ("everstep", "keras", "jax", "jaxlib", "tensorflow", "torch", "numpy")
_PROCESSORS = Path("/proc/cpuinfo")
_GPUS = Path("/proc/driver/nvidia/gpus")
_SETTINGS = (
    "CUBLAS_WORKSPACE_CONFIG",
    "JAX_DEFAULT_MATMUL_PRECISION",
    "JAX_DEFAULT_PRNG_IMPL",
    "JAX_ENABLE_X64",
    "JAX_THREEFRY_PARTITIONABLE",
    "KERAS_FLOATX",
    "MKL_NUM_THREADS",
    "NVIDIA_TF32_OVERRIDE",
    "OMP_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "PYTHONHASHSEED",
    "TF_CUDNN_DETERMINISTIC",
    "TF_DETERMINISTIC_OPS",
    "TF_ENABLE_ONEDNN_OPTS",
    "TF_NUM_INTEROP_THREADS",
    "TF_NUM_INTRAOP_THREADS",
    "TF_XLA_FLAGS",
    "XLA_FLAGS",
)
_SKIPPED = {"__pycache__", "node_modules", "site-packages", "build", "dist", "venv", "env"}
_MAX_SOURCES = 2000
_MAX_SOURCE_BYTES = 32 * 2**20
_GIT_SECONDS = 60.0
_DIFF = (
    *("diff", "HEAD", "--binary", "--full-index", "--no-ext-diff", "--no-textconv", "--no-color", "--no-renames"),
    *("--src-prefix=a/", "--dst-prefix=b/", "--ignore-submodules"),
)
_SAMPLE_BYTES, _SAMPLES = 2**16, 4


# -- machine and packages ----------------------------------------------------------------------------------------------


def environment() -> dict[str, Any]:
    """Returns Python, platform, processors, versions of numerical libraries, and variables that affect them."""
    installed = installed_packages()
    return {
        "python": platform.python_version(),
        "platform": platform.platform(),
        "machine": platform.machine(),
        "processor": processor(),
        "cpu_count": os.cpu_count(),
        "gpus": gpus(),
        "settings": settings(),
        "packages": {name: version for name in _PACKAGES if (version := _version(name, installed))},
    }


def seconds_since_start() -> float | None:
    """Returns the age of this process in seconds; None where the system does not tell it, as only Linux does."""
    try:
        fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
        started = int(fields[19]) / os.sysconf("SC_CLK_TCK")  # since the machine was started
        return round(time.clock_gettime(time.CLOCK_BOOTTIME) - started, 2)
    except (OSError, AttributeError, ValueError, IndexError):
        return None


def processor() -> str:
    """Returns the processor's model."""
    return _value_of("model name", _PROCESSORS) or platform.processor()


def gpus() -> list[str]:
    """Returns the model of each NVIDIA GPU of this machine."""
    if not _GPUS.is_dir():
        return []
    return [_value_of("Model", folder / "information") or "unknown" for folder in sorted(_GPUS.iterdir())]


def settings() -> dict[str, str]:
    """Returns the environment variables that change what libraries compute, if set."""
    return {name: os.environ[name] for name in _SETTINGS if name in os.environ}


def with_settings(variables: Mapping[str, str], recorded: Mapping[str, str]) -> dict[str, str]:
    """Returns environment variables, with the recorded values of those that change what libraries compute."""
    others = {name: value for name, value in variables.items() if name not in _SETTINGS}
    return {**others, **{name: str(value) for name, value in recorded.items() if name in _SETTINGS}}


def installed_packages() -> dict[str, str]:
    """Returns every installed package with its version, read from the names of their folders."""
    found: dict[str, str] = {}
    for folder in sys.path:
        with contextlib.suppress(OSError):  # a zip file, or a folder that is missing
            found = {**_packages_in(folder or ".", os.stat(folder or ".").st_mtime_ns), **found}
    return dict(sorted(found.items()))


@functools.lru_cache(maxsize=64)
def _packages_in(folder: str, changed: int) -> dict[str, str]:
    """Returns the packages of one folder, which is read again only if it has changed: many runs may be short."""
    stems = [os.path.splitext(name)[0] for name in os.listdir(folder) if name.endswith(".dist-info")]
    pairs = [stem.rpartition("-")[::2] for stem in stems]
    return {name.lower().replace("_", "-"): version for name, version in pairs}


def requirements_text() -> str:
    """Returns the content of `requirements.txt` in a run directory, for `pip install -r`."""
    return "".join(f"{name}=={version}\n" for name, version in installed_packages().items())


def read_requirements(directory: Path) -> dict[str, str]:
    """Returns the packages of `requirements_text`; empty if there is no such file."""
    try:
        lines = (directory / REQUIREMENTS).read_text("utf-8").split()
    except (OSError, UnicodeDecodeError):
        return {}
    return {name: version for name, _, version in (line.partition("==") for line in lines) if version}


def _version(package: str, installed: Mapping[str, str]) -> str | None:
    if package == "everstep":
        return __version__
    if package in installed:
        return installed[package]
    try:  # not installed, or not by a wheel
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def _value_of(name: str, path: Path) -> str:
    """Returns the first value of a name in a file of `name: value` lines; empty if there is none."""
    try:
        lines = path.read_text("utf-8", "replace").splitlines()
    except OSError:
        return ""
    values = (value.strip() for key, _, value in (line.partition(":") for line in lines) if key.strip() == name)
    return next(values, "")


# -- code --------------------------------------------------------------------------------------------------------------


def code_version(path: storage.PathLike) -> dict[str, Any]:
    """Returns the version of the code at `path`.

    Returns:
      `commit`, `dirty` (a tracked file changed, or there is an untracked Python file) and `changes` (a digest of the
      patch) inside a git work tree; elsewhere they are None and `sources` is a digest of the Python files below `path`.
      In a submitted run, the submitted version.
    """
    return read_code(path)[0]


def read_code(path: storage.PathLike) -> tuple[dict[str, Any], bytes | None]:
    """Returns the version of the code at `path`, as `code_version`, and the patch that its `changes` tells of, if any.

    Both are of the same moment, and the patch is read from git only once.
    """
    if (submitted := submitted_code(path)) is not None:
        return submitted, code_diff(path) if submitted.get("changes") else None
    commit = git(path, "rev-parse", "HEAD")
    if commit is None:
        return {"commit": None, "dirty": None, "changes": None, "sources": _sources_digest(Path(path))}, None
    changed = git(path, "status", "--porcelain", "--untracked-files=no")
    added = git(path, "ls-files", "--others", "--exclude-standard", "*.py")
    dirty = None if changed is None or added is None else bool(changed or added)
    patch = code_diff(path) if dirty else None
    changes = hashlib.sha256(patch).hexdigest() if patch else None
    return {"commit": commit.decode().strip(), "dirty": dirty, "changes": changes, "sources": None}, patch


def code_change(before: Mapping[str, Any], now: Mapping[str, Any]) -> str:
    """Returns the change between two results of `code_version`, as `commit 1f2e3d4c5b -> commit 0a1b2c3d4e`.

    Empty if there is none, or if `before` is unknown.
    """
    keys = ("commit", "dirty", "changes", "sources")
    same = not before or all(before.get(key) == now.get(key) for key in keys)
    return "" if same else f"{_code_text(before)} -> {_code_text(now)}"


def code_diff(path: storage.PathLike) -> bytes | None:
    """Returns how the repository around `path` differs from its last commit, as a patch; empty if it does not.

    Commit and patch together restore the code: untracked Python files are in the patch, too. The repository is only
    read; git writes to a temporary folder. None if the patch is unknown: there is no git, no repository or no commit,
    or it is too long.
    """
    top = git(path, "rev-parse", "--show-toplevel")
    if top is None:
        return None
    root = top.decode("utf-8", "surrogateescape").removesuffix("\n")
    with contextlib.suppress(OSError), _read_only_git(root) as variables:
        new = git(root, "ls-files", "--others", "--exclude-standard", "-z", "--", "*.py", variables=variables)
        if new:
            names = ("--pathspec-from-file=-", "--pathspec-file-nul")
            git(root, "add", "--intent-to-add", *names, stdin=new, variables=variables)
        found = git(root, *_DIFF, variables=variables)
        return found if found is not None and len(found) <= MAX_DIFF_BYTES else None
    return None


def write_code_diff(directory: Path, patch: bytes | None) -> None:
    """Writes the patch to a run directory, readable by its owner only and without known secrets.

    Args:
      directory: The run directory.
      patch: What `code_diff` returned; if it is empty or None, an earlier patch is removed.
    """
    if patch:
        text = redaction.text(patch.decode("utf-8", "surrogateescape"))
        storage.write_bytes(directory / CODE_DIFF, text.encode("utf-8", "surrogateescape"))
        (directory / CODE_DIFF).chmod(0o600)
    else:
        (directory / CODE_DIFF).unlink(missing_ok=True)


def git(
    path: storage.PathLike, *words: str, stdin: bytes | None = None, variables: Mapping[str, str] | None = None
) -> bytes | None:
    """Returns the output of git; None if there is no git, no repository or no commit, or it fails or times out.

    Args:
      path: The working directory.
      *words: The arguments.
      stdin: The standard input.
      variables: Additional environment variables.
    """
    try:
        done = subprocess.run(
            ["git", "-C", os.fspath(path), *words],
            input=stdin,
            stdin=subprocess.DEVNULL if stdin is None else None,
            capture_output=True,
            timeout=_GIT_SECONDS,
            env={**os.environ, "GIT_OPTIONAL_LOCKS": "0", **(variables or {})},
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout if done.returncode == 0 else None


@contextlib.contextmanager
def _read_only_git(root: str) -> Iterator[dict[str, str]]:
    """Yields environment variables that make git write to a temporary folder only."""
    places = [git(root, "rev-parse", "--git-path", name) for name in ("index", "objects")]
    if any(place is None for place in places):
        raise FileNotFoundError(root)
    index, objects = (os.path.join(root, os.fsdecode(place or b"").removesuffix("\n")) for place in places)
    with tempfile.TemporaryDirectory(prefix="everstep-git-") as folder:
        if os.path.exists(index):
            shutil.copy2(index, os.path.join(folder, "index"))  # its time tells git which files to compare
        os.mkdir(os.path.join(folder, "objects"))
        yield {
            "GIT_INDEX_FILE": os.path.join(folder, "index"),
            "GIT_OBJECT_DIRECTORY": os.path.join(folder, "objects"),
            "GIT_ALTERNATE_OBJECT_DIRECTORIES": os.path.abspath(objects),
        }


def _code_text(code: Mapping[str, Any]) -> str:
    if not code.get("commit"):
        return f"sources {str(code.get('sources'))[:10]}"
    changes = f" with changes {(code.get('changes') or '')[:10]}".rstrip() if code.get("dirty") else ""
    return f"commit {code['commit'][:10]}{changes}"


def _sources_digest(root: Path) -> str:
    """Returns the digest of the Python files below `root`; limited, because `root` may be a home directory."""
    sha, left = hashlib.sha256(), _MAX_SOURCE_BYTES
    for number, source in enumerate(_sources(root)):
        if number >= _MAX_SOURCES or left <= 0:
            break
        data = b""
        with contextlib.suppress(OSError):
            data = source.read_bytes()
        left -= len(data)
        name = os.fsencode(source.relative_to(root))
        sha.update(b"%d %d " % (len(name), len(data)) + name + data)
    return sha.hexdigest()


def _sources(root: Path) -> Iterator[Path]:
    """Yields the Python files below `root` in a fixed order, without hidden, installed and built ones."""
    for directory, names, files in os.walk(root):
        names[:] = sorted(name for name in names if not name.startswith(".") and name not in _SKIPPED)
        yield from (Path(directory, name) for name in sorted(files) if name.endswith(".py"))


# -- data --------------------------------------------------------------------------------------------------------------


def fingerprint(arrays: Any) -> dict[str, dict[str, Any]]:
    """Returns shape, dtype and sha256 of every array in a nested structure, by its path in it.

    Example:
      fingerprint({"x": x, "y": (a, b)})  # keys "x", "y/0", "y/1"
    """
    return {path: _describe(np.asarray(leaf)) for path, leaf in _leaves(arrays, ())}


def file_fingerprints(files: Iterable[str]) -> dict[str, dict[str, Any]]:
    """Returns fingerprints of files by their names without folders, because data may be moved.

    Returns:
      For each file `bytes`, and `sha256` of its content, or `sampled`, that of four samples of it. Neither if there are
      too many files, or it cannot be read.
    """
    found: dict[str, dict[str, Any]] = {}
    for file, content in _contents(files):
        name = os.path.basename(file)
        while name in found:  # two folders may have files of the same name
            name += "'"
        found[name] = content
    return found


def folder_fingerprint(folder: Path) -> dict[str, Any]:
    """Returns each file's fingerprint by its path in a folder; for many files, one for all: `sha256`."""
    found = {os.path.relpath(file, folder): content for file, content in _contents(_files_below(folder))}
    if len(found) <= MAX_NAMED_FILES:
        return found
    whole = all("sha256" in content for content in found.values())
    digest = hashlib.sha256(json.dumps(sorted(found.items())).encode()).hexdigest()
    size = sum(content["bytes"] for content in found.values())
    return {"files": len(found), "bytes": size, "sha256" if whole else "sampled": digest}


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


def _files_below(folder: Path) -> Iterator[str]:
    for directory, names, files in os.walk(folder):
        names[:] = sorted(name for name in names if not name.startswith("."))
        yield from (os.path.join(directory, name) for name in sorted(files) if not name.startswith("."))


def _contents(files: Iterable[str]) -> Iterator[tuple[str, dict[str, Any]]]:
    left, to_sample = MAX_DATA_BYTES, MAX_SAMPLED_FILES
    for file in files:
        found: dict[str, Any] = {"bytes": 0}
        with contextlib.suppress(OSError):
            found["bytes"] = size = os.path.getsize(file)
            if size <= left:
                left -= size
                with open(file, "rb") as opened:
                    found["sha256"] = hashlib.file_digest(opened, "sha256").hexdigest()
            else:
                to_sample -= 1
                if to_sample >= 0:
                    found["sampled"] = _sample(file, size)
        yield file, found


def _sample(file: str, size: int) -> str:
    sha = hashlib.sha256()
    with open(file, "rb") as opened:
        for number in range(_SAMPLES):
            opened.seek(max(size - _SAMPLE_BYTES, 0) * number // (_SAMPLES - 1))
            sha.update(opened.read(_SAMPLE_BYTES))
    return sha.hexdigest()
