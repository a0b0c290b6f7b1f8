"""What a run exchanges with the process that launched it: a supervisor, or the job of a submission.

EVERSTEP_SUPERVISOR is the path of a file to which the run writes its directory; the supervisor reads it when the run
has died. EVERSTEP_SUBMISSION is the folder with the config file, the classes and the code version as they were when the
run was submitted: a job may wait for hours, and later edits are not used.
"""

import contextlib
import dataclasses
import os
from pathlib import Path
from typing import Any

from everstep import storage
from everstep.errors import UsageError

SUPERVISOR = "EVERSTEP_SUPERVISOR"
SUBMISSION = "EVERSTEP_SUBMISSION"

SUBMISSIONS = "submissions"
"""The folder of a run's submissions, in its directory."""

RECORD, STARTED, ENDED = "submission.json", "started.json", "ended.json"
"""The files of a submission: what was submitted; when its job began; how it ended."""


@dataclasses.dataclass(frozen=True)
class Announcement:
    """What a run has written for its supervisor.

    Attributes:
      model_dir: The run directory.
      requeue_exit_code: The exit code that requests a start on another machine, None if there is none.
      stop_reason: Why the run ends although it is not done, if it decided so itself; None if it did not.
    """

    model_dir: Path
    requeue_exit_code: int | None = None
    stop_reason: str | None = None


def announce(model_dir: storage.PathLike, requeue_exit_code: int | None = None, stop_reason: str | None = None) -> None:
    """Writes the run directory for the supervisor; does nothing without one.

    Call it early, and once more with `stop_reason` when the run is about to stop by its own decision.
    """
    path = os.environ.get(SUPERVISOR)
    if path:
        announcement = {
            "model_dir": os.path.abspath(model_dir),
            "requeue_exit_code": requeue_exit_code,
            "stop_reason": stop_reason,
        }
        with contextlib.suppress(OSError):  # training does not depend on the supervisor
            storage.write_json(path, announcement)


def announced(path: storage.PathLike) -> Announcement | None:
    """Returns the last announcement in the file at `path`; None if there is none."""
    with contextlib.suppress(UsageError, KeyError, TypeError):
        found = storage.read_json(path)
        return Announcement(Path(found["model_dir"]), found.get("requeue_exit_code"), found.get("stop_reason"))
    return None


@dataclasses.dataclass(frozen=True)
class Submitted:
    """The copies that a run was submitted with.

    Attributes:
      config: The config file.
      sources: The folder of the project's classes.
    """

    config: Path
    sources: Path


def submitted(run_dir: storage.PathLike) -> Submitted | None:
    """Returns the copies that this process uses for the run in `run_dir`; None if it was not submitted.

    Raises:
      UsageError: They are missing, so the run cannot be trained as submitted.
    """
    folder = _submission_folder()
    if folder is None or not folder.resolve().is_relative_to(Path(run_dir).resolve()):
        return None
    record = storage.read_json(folder / RECORD)
    if not record.get("config"):
        return None
    copies = Submitted(folder / record["config"], folder / "sources")
    if not (copies.config.is_file() and copies.sources.is_dir()):
        raise UsageError("the submitted copies are incomplete", key=str(folder), remedy="submit the run again")
    return copies


def submitted_code(root: storage.PathLike) -> dict[str, Any] | None:
    """Returns the submitted version of the code at `root`; None if this process was not submitted."""
    folder = _submission_folder()
    with contextlib.suppress(UsageError, KeyError, TypeError, OSError):
        if folder is not None:
            record = storage.read_json(folder / RECORD)
            if Path(record["root"]).resolve() == Path(root).resolve():
                return dict(record["code"])
    return None


def _submission_folder() -> Path | None:
    named = os.environ.get(SUBMISSION)
    return Path(named) if named else None
