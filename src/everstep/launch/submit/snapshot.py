"""The snapshot of a run: what it consisted of when it was submitted.

runs/R/submissions/<time>-<id>/
  submission.json     what was submitted, where, and as which job
  config.yaml         the config file as it was
  sources/            the code as it was: of a project, all of `src_code_path`; of a command, the Python files
  code.diff           what was not committed, in a git work tree
  started.json, ended.json    written by the job

Code and what is not committed may hold secrets: nobody but the user can look into the folder.
"""

import contextlib
import datetime
import shlex
import shutil
import uuid
from pathlib import Path
from typing import Any

from everstep import redaction, storage
from everstep.errors import UsageError
from everstep.launch.submit import sources
from everstep.launch.submit.data_files import fingerprint
from everstep.launch.submit.request import Request
from everstep.run.environment import code_version
from everstep.run.launcher import RECORD, SUBMISSIONS


def place(request: Request) -> Path:
    """Returns where the next snapshot will be."""
    now = datetime.datetime.now(datetime.UTC)
    return request.directory / SUBMISSIONS / f"{now:%Y%m%d-%H%M%S}-{uuid.uuid4().hex[:4]}"


def take(request: Request, folder: Path, engine: str) -> None:
    """Copies what the run consists of to `folder`, whole or not at all.

    Raises:
      UsageError: The code is larger than what is copied, or the disk does not take it.
    """
    files = _files(request)
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with storage.atomic_path(folder) as temporary:
            temporary.mkdir(mode=0o700)
            sources.copy(request.sources, files, temporary / "sources")
            if request.config is not None:
                shutil.copyfile(request.config, temporary / request.config.name)
            if diff := sources.uncommitted(request.root):
                (temporary / "code.diff").write_bytes(diff)
            storage.write_json(temporary / RECORD, _record(request, temporary / "sources", folder.name, engine))
    except OSError as error:
        raise UsageError(f"cannot write the snapshot {str(folder)!r}: {error.strerror}") from error


def _record(request: Request, copied: Path, name: str, engine: str) -> dict[str, Any]:
    return {
        "format": 1,
        "id": name,
        "submitted": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "engine": engine,
        "job": None,
        "root": str(request.root),
        "command": redaction.text(shlex.join(request.command)),
        "config": request.config.name if request.config is not None else None,
        "code": code_version(request.root),
        "sources": sources.digest(copied, sources.source_files(copied, sources.is_any)),
        "data_dir": None if request.data_dir is None else str(request.data_dir),
        "data": None if request.data_dir is None else fingerprint(request.data_dir),
    }


def note_job(folder: Path, job: str, address: str | None = None) -> None:
    """Adds the engine's number of the job, and where that engine can be asked for it."""
    known = {"job": job, "address": None if address is None else redaction.text(address)}
    storage.write_json(folder / RECORD, {**storage.read_json(folder / RECORD), **known})


def discard(folder: Path) -> None:
    """Removes the snapshot of a job that no engine took."""
    storage.remove_directory(folder)
    with contextlib.suppress(OSError):  # there are others
        folder.parent.rmdir()


def sources_changed(record: dict[str, Any], run_dir: Path) -> bool:
    """Tells whether the Python files that a command was submitted with are others by now."""
    root = Path(record["root"])
    files = sources.source_files(root, sources.is_python, without=[run_dir])
    return sources.digest(root, files) != record["sources"]


def _files(request: Request) -> list[Path]:
    """Returns the files to copy; runs and data may lie below them, and are none of the code."""
    if not request.has_copies:
        return sources.source_files(request.sources, sources.is_python, without=[request.directory])
    without = [request.root / "runs", *([request.data_dir] if request.data_dir else [])]
    return sources.source_files(request.sources, sources.is_any, without)
