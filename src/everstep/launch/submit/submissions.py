"""How far submitted runs have come: what their jobs noted, and what the queue knows."""

import contextlib
import dataclasses
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Literal

from everstep import storage
from everstep.errors import UsageError
from everstep.launch.submit import ray_jobs, squeue
from everstep.run.launcher import ENDED, RECORD, STARTED, SUBMISSIONS
from everstep.run.lock import is_held

State = Literal["queued", "active", "ended", "killed"]
"""Queued: nothing has run, or it is to run again. Killed: it ended without a word."""

_HOW_TO_END = {"background": "kill {job}", "slurm": "scancel {job}", "ray": "ray job stop {job}"}


@dataclasses.dataclass(frozen=True)
class Submission:
    """One submission of a run.

    Attributes:
      folder: Its snapshot.
      record: What `submission.json` says.
      state: How far it is.
      code: What its job ended with; None if that is not known.
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
    def job(self) -> str:
        """The engine and its number of the job: `slurm 123`."""
        return f"{self.record['engine']} {self.record['job'] or '?'}"

    @property
    def how_to_end(self) -> str:
        """The command that ends it."""
        return _HOW_TO_END.get(self.record["engine"], "?").format(job=self.record["job"])


class Queues:
    """What the engines' queues say; only those are asked that somebody has a job in, and who is silent only once."""

    def __init__(self) -> None:
        self._slurm: dict[str, str] | None = None
        self._asked = False
        self._silent: set[str] = set()

    def has(self, record: Mapping[str, Any]) -> bool | None:
        """Tells whether the queue of a submission has its job; None where the queue cannot be asked from here.

        Args:
          record: What `submission.json` says.
        """
        if record.get("engine") == "ray":
            return self._has_ray(record.get("address"), record.get("job"))
        return self._has_slurm(record.get("job")) if record.get("engine") == "slurm" else None

    def _has_ray(self, address: Any, job: Any) -> bool | None:
        if not isinstance(address, str) or not isinstance(job, str) or address in self._silent:
            return None
        try:
            return ray_jobs.has(address, job)
        except ray_jobs.Unreachable:
            self._silent.add(address)
            return None

    def _has_slurm(self, job: Any) -> bool | None:
        if not self._asked:
            self._asked = True
            with contextlib.suppress(UsageError):
                self._slurm = squeue.jobs()
        return None if self._slurm is None else job in self._slurm


def newest(run_dir: Path, queues: Queues | None = None) -> Submission | None:
    """Returns the newest submission of a run; None if it was never submitted."""
    folders = sorted((run_dir / SUBMISSIONS).glob(f"*/{RECORD}"))
    return _read(folders[-1].parent, queues or Queues()) if folders else None


def find(root: Path, queues: Queues) -> Iterator[Submission]:
    """Yields the newest submission of every run at or below `root`."""
    for directory, names, _ in os.walk(root):
        names[:] = sorted(name for name in names if not name.startswith("."))
        if SUBMISSIONS in names and (found := newest(Path(directory), queues)) is not None:
            yield found
            names.clear()


def require_none_under_way(run_dir: Path) -> None:
    """Refuses where a run is submitted already and not done.

    Raises:
      UsageError: Names the job, and how to end it.
    """
    found = newest(run_dir)
    if found is not None and found.state in ("queued", "active"):
        what = "waits in the queue" if found.state == "queued" else "is under way"
        raise UsageError(
            f"{str(run_dir)!r} is submitted already: {found.job} {what}; {found.how_to_end} ends it "
            f"(where the queue has lost it, remove {str(found.folder)!r})"
        )


def _read(folder: Path, queues: Queues) -> Submission:
    record, ended = _json(folder / RECORD), _json(folder / ENDED)
    times = (record.get("submitted"), _json(folder / STARTED).get("time"), ended.get("time"))
    known = {"engine": "?", "job": None, **record}
    state = _state(folder, record, queues)
    return Submission(folder, known, state, ended.get("code"), tuple(time for time in times if time))


def _state(folder: Path, record: Mapping[str, Any], queues: Queues) -> State:
    ended = _json(folder / ENDED)
    if not record and not is_held(folder):
        return "killed"  # it cannot be read: no queue can be asked for it
    if ended and not ended.get("requeued"):
        return "ended"
    known = queues.has(record)
    if known is False:
        return "killed"
    if is_held(folder):
        return "active"
    if ended or not (folder / STARTED).exists():
        return "queued" if record.get("engine") != "background" else "killed"
    return "queued" if known else "killed"


def _json(path: Path) -> dict[str, Any]:
    with contextlib.suppress(UsageError, TypeError, ValueError):
        return dict(storage.read_json(path))
    return {}
