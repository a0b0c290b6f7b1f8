"""The snapshot of a run: what it consisted of when it was submitted.

runs/R/submissions/<time>-<id>/
  submission.json     what was submitted, where, and as which job
  config.yaml         a copy of the config file
  sources/            a copy of the code: of a project, all of `src_code_path`; of a command, the Python files
  code.diff           uncommitted changes, in a git work tree
  started.json, ended.json    written by the job

Code and uncommitted changes may contain secrets: only the user can read the folder. Data is not copied; a fingerprint
shows whether it has changed.
"""

import contextlib
import datetime
import hashlib
import os
import shlex
import shutil
import subprocess
import uuid
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from everstep import redaction, storage
from everstep.errors import UsageError
from everstep.run import RECORD, SUBMISSIONS, code_version
from everstep.submit.request import SubmitRequest

_MAX_SOURCE_BYTES = 64 * 2**20
_MAX_SOURCE_FILES = 10_000
_MAX_DIFF = 8 * 2**20
_SKIPPED = {"__pycache__", "node_modules", "site-packages", "mlruns"}
_GIT_SECONDS = 30.0


def place(request: SubmitRequest) -> Path:
    """Returns the folder of the next snapshot."""
    now = datetime.datetime.now(datetime.UTC)
    return request.directory / SUBMISSIONS / f"{now:%Y%m%d-%H%M%S}-{uuid.uuid4().hex[:4]}"


def take(request: SubmitRequest, folder: Path, executor: str) -> None:
    """Copies what the run consists of to `folder`, completely or not at all.

    Args:
      request: The run.
      folder: What `place` returned.
      executor: What runs the job: `background`, `slurm` or `ray`.

    Raises:
      UsageError: The code is too large to be copied, or the folder cannot be written.
    """
    if request.has_copies:  # runs and data may be inside the folder of the code
        without = [request.root / "runs", *([request.data_dir] if request.data_dir else [])]
        files = source_files(request.sources, without)
    else:
        files = source_files(request.sources, [request.directory], only_python=True)
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with storage.atomic_path(folder) as temporary:
            temporary.mkdir(mode=0o700)
            copied = temporary / "sources"
            copied.mkdir()
            for path in files:
                target = copied / path.relative_to(request.sources)
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(path, target)
            if request.config is not None:
                shutil.copyfile(request.config, temporary / request.config.name)
            if diff := _uncommitted(request.root):
                (temporary / "code.diff").write_bytes(diff)
            storage.write_json(temporary / RECORD, _record(request, copied, folder.name, executor))
    except OSError as error:
        raise UsageError(
            f"the snapshot cannot be written: {error.strerror}", key="submissions", received=str(folder)
        ) from error


def _record(request: SubmitRequest, copied: Path, name: str, executor: str) -> dict[str, Any]:
    return {
        "format": 1,
        "id": name,
        "submitted": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "executor": executor,
        "job": None,
        "root": str(request.root),
        "command": redaction.text(shlex.join(request.command)),
        "config": request.config.name if request.config is not None else None,
        "code": code_version(request.root),
        "sources": _digest(copied, source_files(copied)),
        "data_dir": None if request.data_dir is None else str(request.data_dir),
        "data": None if request.data_dir is None else data_fingerprint(request.data_dir),
    }


def record_job(folder: Path, job: str, address: str | None = None) -> None:
    """Adds the executor's id of the job to the record, and the address at which its state can be read."""
    known = {"job": job, "address": None if address is None else redaction.text(address)}
    storage.write_json(folder / RECORD, {**storage.read_json(folder / RECORD), **known})


def recorded_executor(record: Mapping[str, Any]) -> str:
    """Returns what runs the job of a `submission.json`, which early versions called `engine`; `?` if it is damaged."""
    return str(record.get("executor", record.get("engine", "?")))


def discard(folder: Path) -> None:
    """Removes the snapshot of a job that was not submitted."""
    storage.remove_directory(folder)
    with contextlib.suppress(OSError):  # there are others
        folder.parent.rmdir()


# The code


def sources_changed(record: dict[str, Any], run_dir: Path) -> bool:
    """Returns whether the Python files of a submitted command have changed since."""
    root = Path(record["root"])
    return _digest(root, source_files(root, [run_dir], only_python=True)) != record["sources"]


def source_files(root: Path, without: Iterable[Path] = (), only_python: bool = False) -> list[Path]:
    """Returns the files below `root` that make up its code, in a fixed order.

    Hidden names, caches and virtual environments are skipped; links are followed.

    Args:
      root: The folder of the code.
      without: Folders to skip.
      only_python: Whether only Python files count, for a folder that may contain anything.

    Raises:
      UsageError: There is more than a submission copies.
    """
    found, size = [], 0
    for path in _walk(root, {folder.resolve() for folder in without}):
        if only_python and path.suffix != ".py":
            continue
        found.append(path)
        size += path.stat().st_size
        if len(found) > _MAX_SOURCE_FILES or size > _MAX_SOURCE_BYTES:
            largest = max(found, key=lambda path: path.stat().st_size)
            raise UsageError(
                f"has more than a submission copies ({_MAX_SOURCE_FILES} files, {_MAX_SOURCE_BYTES >> 20} MiB); "
                f"the largest file is {str(largest.relative_to(root))!r}",
                key="sources",
                received=str(root),
                remedy="keep data out of the code's folder",
            )
    return found


def _walk(folder: Path, without: set[Path], above: tuple[Path, ...] = ()) -> Iterator[Path]:
    """Yields the files of a folder, then those of the folders in it; links to a folder above are not followed."""
    here = folder.resolve()
    is_environment, is_snapshot = (folder / "pyvenv.cfg").is_file(), (folder / RECORD).is_file()
    if here in without or here in above or (above and (is_environment or is_snapshot)):
        return
    entries = sorted(entry for entry in folder.iterdir() if not entry.name.startswith("."))
    yield from (entry for entry in entries if entry.is_file() and entry.suffix != ".pyc")
    for entry in entries:
        if entry.is_dir() and entry.name not in _SKIPPED:
            yield from _walk(entry, without, (*above, here))


def _digest(root: Path, files: Iterable[Path]) -> str:
    """Returns a sha256 over names and contents."""
    sha = hashlib.sha256()
    for path in files:
        name, data = os.fsencode(path.relative_to(root)), path.read_bytes()
        sha.update(b"%d %d " % (len(name), len(data)) + name + data)
    return sha.hexdigest()


def _uncommitted(root: Path) -> bytes:
    """Returns git's diff to the last commit; empty without git or without changes."""
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


# The data

MAX_DATA_FILES = 200_000
"""Further files are not part of a fingerprint."""
MAX_DATA_BYTES = 256 * 2**20
"""How much content is read; beyond it names and sizes count."""

_CHUNK = 2**20


def data_fingerprint(folder: Path) -> dict[str, Any]:
    """Returns what shows a change of a folder or file of data, cheap enough for every submission.

    Returns:
      `files` and `bytes`: how many, how large. `names`: sha256 over every path and size. `content`: sha256 over the
      content of the files in the order of their paths, up to `MAX_DATA_BYTES`. `content_bytes`: how much that is.
      `complete`: whether that is everything.
    """
    names, content = hashlib.sha256(), hashlib.sha256()
    files = total = read = 0
    complete = True
    for path in _data_files(folder):
        if files == MAX_DATA_FILES:
            complete = False
            break
        try:
            size = path.stat().st_size
        except OSError:  # a dangling link
            size = 0
        names.update(b"%d " % size + os.fsencode(path.relative_to(folder)) + b"\0")
        files, total = files + 1, total + size
        read += _add_content(path, content, MAX_DATA_BYTES - read)
    return {
        "files": files,
        "bytes": total,
        "names": names.hexdigest(),
        "content": content.hexdigest(),
        "content_bytes": read,
        "complete": complete and read == total,
    }


def data_difference(before: dict[str, Any], now: dict[str, Any]) -> str | None:
    """Returns how data differs from its earlier fingerprint, for a message; None if it does not."""
    if before == now:
        return None
    if (before["files"], before["bytes"]) != (now["files"], now["bytes"]):
        amounts = [f"{one['files']} files of {one['bytes']} bytes" for one in (before, now)]
        return f"{amounts[0]} when it was submitted, {amounts[1]} now"
    return f"other {'names or sizes' if before['names'] != now['names'] else 'content'} than when it was submitted"


def _data_files(folder: Path) -> Iterator[Path]:
    if folder.is_file():
        yield folder
    for directory, names, files in os.walk(folder):
        names.sort()
        yield from (Path(directory, name) for name in sorted(files))


def _add_content(path: Path, sha: Any, limit: int) -> int:
    """Adds at most `limit` bytes of a file to a digest; returns how many were added."""
    read = 0
    try:
        with open(path, "rb") as file:
            while read < limit and (data := file.read(min(_CHUNK, limit - read))):
                sha.update(data)
                read += len(data)
    except OSError:
        sha.update(b"unreadable")
    return read
