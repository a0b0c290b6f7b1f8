"""The state of submitted runs: what their jobs recorded, and what the executors' queues report."""

import contextlib
import dataclasses
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Literal

from everstep import storage
from everstep.errors import UsageError
from everstep.run import ENDED, RECORD, STARTED, SUBMISSIONS, is_held, register_jobs
from everstep.submit import ray, slurm
from everstep.submit.snapshot import recorded_executor

State = Literal["queued", "active", "ended", "killed"]
"""Queued: nothing has run yet, or it will run again. Killed: it ended without recording how."""

_STOP_COMMANDS = {"background": "kill {job}", "slurm": "scancel {job}", "ray": "ray job stop {job}"}


@dataclasses.dataclass(frozen=True)
class Submission:
    """One submission of a run.

    Attributes:
      folder: Its snapshot.
      record: The content of `submission.json`.
      state: Whether its job waits, runs or is over.
      code: The exit code of its job; None if it is unknown.
      times: When it was submitted, and when its job began and ended, as far as it has.
    """

    folder: Path
    record: Mapping[str, Any]
    state: State
    code: int | None
    times: tuple[str, ...] = ()

    @property
    def run_dir(self) -> Path:
        """The run's folder."""
        return self.folder.parent.parent

    @property
    def executor(self) -> str:
        """What runs the job: `background`, `slurm` or `ray`."""
        return recorded_executor(self.record)

    @property
    def job(self) -> str:
        """The executor and its id of the job: `slurm 123`."""
        return f"{self.executor} {self.record['job'] or '?'}"

    @property
    def stop_command(self) -> str:
        """The command that ends the job."""
        return _STOP_COMMANDS.get(self.executor, "?").format(job=self.record["job"])

    def as_dict(self) -> Mapping[str, Any]:
        """Returns the submission for programs."""
        record = self.record
        return {
            "id": record.get("id"),
            "executor": self.executor,
            "job": record.get("job"),
            "submitted": record.get("submitted"),
            "state": self.state,
            "code": self.code,
        }


class Queues:
    """The executors' queues. Each is read only if a submission is in it; one that does not answer is read only once."""

    def __init__(self) -> None:
        self._slurm: dict[str, str] | None = None
        self._slurm_read = False
        self._unreachable: set[str] = set()

    def has(self, record: Mapping[str, Any]) -> bool | None:
        """Returns whether the queue of a submission has its job; None if the queue cannot be read from here.

        Args:
          record: The content of `submission.json`.
        """
        executor = recorded_executor(record)
        if executor == "ray":
            return self._has_ray(record.get("address"), record.get("job"))
        return self._has_slurm(record.get("job")) if executor == "slurm" else None

    def _has_ray(self, address: Any, job: Any) -> bool | None:
        if not isinstance(address, str) or not isinstance(job, str) or address in self._unreachable:
            return None
        try:
            return ray.has_job(address, job)
        except ray.Unreachable:
            self._unreachable.add(address)
            return None

    def _has_slurm(self, job: Any) -> bool | None:
        if not self._slurm_read:
            self._slurm_read = True
            with contextlib.suppress(UsageError):
                self._slurm = slurm.queued_jobs()
        return None if self._slurm is None else job in self._slurm


def newest(run_dir: Path, queues: Queues | None = None) -> Submission | None:
    """Returns the newest submission of a run; None if it was never submitted."""
    folders = sorted((run_dir / SUBMISSIONS).glob(f"*/{RECORD}"))
    return _read(folders[-1].parent, queues or Queues()) if folders else None


def find(root: Path) -> Iterator[Submission]:
    """Yields the newest submission of every run at or below `root`."""
    queues = Queues()
    for directory, names, _ in os.walk(root):
        names[:] = sorted(name for name in names if not name.startswith("."))
        if SUBMISSIONS in names and (found := newest(Path(directory), queues)) is not None:
            yield found
            names.clear()


def require_not_submitted(run_dir: Path) -> None:
    """Checks that no submission of a run is queued or active.

    Raises:
      UsageError: One is; has the command that ends its job.
    """
    found = newest(run_dir)
    if found is not None and found.state in ("queued", "active"):
        state = "waits in the queue" if found.state == "queued" else "is active"
        raise UsageError(
            f"is already submitted: {found.job} {state}",
            key="run",
            received=str(run_dir),
            remedy=f"{found.stop_command} ends it (if the queue has lost it, remove {str(found.folder)!r})",
        )


def _read(folder: Path, queues: Queues) -> Submission:
    record, ended = _json(folder / RECORD), _json(folder / ENDED)
    times = (record.get("submitted"), _json(folder / STARTED).get("time"), ended.get("time"))
    known = {"job": None, **record}
    state = _state(folder, record, queues)
    return Submission(folder, known, state, ended.get("code"), tuple(time for time in times if time))


def _state(folder: Path, record: Mapping[str, Any], queues: Queues) -> State:
    ended = _json(folder / ENDED)
    if not record and not is_held(folder):
        return "killed"  # it cannot be read, and names no queue
    if ended and not ended.get("requeued"):
        return "ended"
    known = queues.has(record)
    if known is False:
        return "killed"
    if is_held(folder):
        return "active"
    if ended or not (folder / STARTED).exists():
        return "queued" if recorded_executor(record) != "background" else "killed"
    return "queued" if known else "killed"


def _json(path: Path) -> dict[str, Any]:
    with contextlib.suppress(UsageError, TypeError, ValueError):
        return dict(storage.read_json(path))
    return {}


register_jobs(newest, find)  # `everstep runs` shows the state of a run's job
