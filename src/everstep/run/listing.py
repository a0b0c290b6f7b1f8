"""Every run below a directory, with its real state: from its record, its lock, and the queue of its job.

What submits runs, and what starts many of them together, registers how its jobs and its groups are read, in a module
that an entry point names:

    [project.entry-points."everstep.runs"]
    mine = "my_package.runs"
"""

import dataclasses
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from everstep.entry_points import load_modules
from everstep.run.final_weights import FinalWeights, read_final_weights
from everstep.run.kept_work import seconds
from everstep.run.layout_registry import export_record, loop_directories, results_file, run_folder
from everstep.run.lock import is_held, last_beat
from everstep.run.record import Record, damage, find_runs

ENTRY_POINTS = "everstep.runs"
"""The group of the entry points."""


class Job(Protocol):
    """The newest job of a run that was submitted."""

    @property
    def run_dir(self) -> Path:
        """The run's folder."""

    @property
    def folder(self) -> Path:
        """What was submitted: copies of its files."""

    @property
    def state(self) -> str:
        """`queued`: nothing has run yet, or it will run again; `active`; `ended`; `killed`: no end is recorded."""

    @property
    def code(self) -> int | None:
        """Its exit code; None if it is unknown."""

    @property
    def times(self) -> Sequence[str]:
        """When it was submitted, and when it began and ended, as far as it has."""

    @property
    def executor(self) -> str:
        """What runs it: `slurm`."""

    @property
    def job(self) -> str:
        """Its name to people: `slurm 123`."""

    @property
    def stop_command(self) -> str:
        """The command that ends it."""

    def as_dict(self) -> Mapping[str, Any]:
        """Returns it for programs."""


class RunGroup(Protocol):
    """Runs that were started together, such as the trials of a sweep."""

    @property
    def directory(self) -> Path:
        """Its directory."""

    @property
    def places(self) -> Mapping[Path, int]:
        """The directories of its runs, with their numbers."""

    def best(self, count: int) -> list[Path]:
        """Returns the directories of the best runs."""

    def line(self) -> str:
        """Returns it on one line."""


_job_readers: list[tuple[Callable[[Path], Job | None], Callable[[Path], Iterable[Job]]]] = []
_group_readers: list[tuple[Callable[[Path], RunGroup | None], Callable[[Path], Iterable[RunGroup]]]] = []


def register_jobs(newest: Callable[[Path], Job | None], find: Callable[[Path], Iterable[Job]]) -> None:
    """Adds a kind of jobs: how the newest job of a run is read, and those of every run below a directory."""
    _job_readers.append((newest, find))


def register_run_groups(read: Callable[[Path], RunGroup | None], find: Callable[[Path], Iterable[RunGroup]]) -> None:
    """Adds a kind of groups: how the one in a directory is read, and those below a directory."""
    _group_readers.append((read, find))


def _load_readers() -> None:
    load_modules(ENTRY_POINTS, "jobs and groups of runs")


def newest_job(run_dir: Path) -> Job | None:
    """Returns the newest job of a run; None if it was never submitted."""
    _load_readers()
    return next((job for newest, _ in _job_readers if (job := newest(run_dir)) is not None), None)


def find_run_groups(root: Path) -> list[RunGroup]:
    """Returns the groups of runs at or below a directory."""
    _load_readers()
    return [group for _, find in _group_readers for group in find(root)]


def read_run_group(directory: Path) -> RunGroup | None:
    """Returns the group of runs in a directory; None if there is none."""
    _load_readers()
    return next((group for read, _ in _group_readers if (group := read(directory)) is not None), None)


@dataclasses.dataclass(frozen=True)
class Overview:
    """One run.

    Attributes:
      directory: Its directory; of a project's run, its folder in `runs/`.
      record: Its `run.json`; None if it has not begun.
      submission: Its newest job; None if it was never submitted.
    """

    directory: Path
    record: Record | None
    submission: Job | None

    @property
    def state(self) -> str:
        """The state of the run, followed by its job in brackets where the state is that of the job.

        `queued`; `starting`, before the first step; `running`; `restarting`, between two attempts; `exporting` and
        `evaluating`, after the training of a project's run, or `trained` if these are missing; `finished`,
        `interrupted` or `failed`, as recorded; `killed`, without a recorded end; `unreadable`.
        """
        recorded = str(self.record["status"]) if self.record else None
        if self._is_at_work:
            if recorded == "finished":
                return "exporting" if export_record(self.directory) is None else "evaluating"
            return "running" if recorded == "running" else "starting"
        if self.submission is not None and self.submission.state == "queued":
            return f"queued ({self.submission.job})"
        if self.submission is not None and self.submission.state == "active" and not self._job_is_done:
            return f"{'running' if recorded is None else 'restarting'} ({self.submission.job})"
        if recorded is None or self._job_failed_early:
            return self._early_end()
        if recorded == "finished" and self._lacks_evaluation:
            return "trained"
        return "killed" if recorded == "running" else recorded

    @property
    def _is_at_work(self) -> bool:
        return any(map(is_held, loop_directories(self.directory)))

    @property
    def _lacks_evaluation(self) -> bool:
        """Whether it is a project's run whose export or evaluation is not complete."""
        inside = any(path.is_dir() for path in loop_directories(self.directory)[1:])
        return inside and results_file(self.directory) is None

    @property
    def _job_is_done(self) -> bool:
        """Whether the newest job has finished the run, and only its process has to end, which takes seconds."""
        if self.record is None or self.record["status"] != "finished" or self._lacks_evaluation:
            return False
        submitted = seconds(self.submission.times[0]) if self.submission and self.submission.times else None
        attempts, evaluated = self.record["attempts"], results_file(self.directory)
        times = [seconds(attempts[-1]["started"])] if attempts else []
        times += [] if evaluated is None else [evaluated.stat().st_mtime]
        return submitted is None or any(time is not None and time >= submitted for time in times)

    @property
    def _job_failed_early(self) -> bool:
        """Whether the newest job failed before it began an attempt: the record is that of an earlier job."""
        job = self.submission
        if job is None or job.state != "ended" or not job.code or not job.times or not self.record:
            return False
        attempts = self.record["attempts"]
        begun, submitted = seconds(attempts[-1]["started"]) if attempts else None, seconds(job.times[0])
        return begun is None or (submitted is not None and begun < submitted)

    def _early_end(self) -> str:
        """Returns the state of a run whose newest job ended before its first step."""
        if self.submission is None or self.submission.state == "killed" or self.submission.code is None:
            return "killed"
        code = self.submission.code
        return f"failed (exit {code}, {self.submission.job})" if code else "finished"

    @property
    def step(self) -> int:
        """Steps done: as recorded, or the last heartbeat of the process at work."""
        recorded = int(self.record["step"]) if self.record else 0
        beat = self._beat
        return max(recorded, beat[0]) if beat is not None and self._is_at_work else recorded

    @property
    def train_steps(self) -> int | None:
        """Steps in all; None if unknown."""
        return self.record["train_steps"] if self.record else None

    @property
    def final_weights(self) -> FinalWeights | None:
        """The weights that it ended with; None if they are those of its last step, or unknown."""
        return read_final_weights(self.record, self.directory)

    @property
    def shown_metrics(self) -> Mapping[str, Mapping[str, Any]]:
        """The logs of the weights that the run ended with, by kind; while it trains, the last ones."""
        logged: Mapping[str, Mapping[str, Any]] = (self.record or {}).get("metrics", {})
        final = self.final_weights
        return logged if final is None else {**logged, **final.metrics}

    @property
    def seconds_left(self) -> float | None:
        """How long training will take at the pace of this attempt; None if that is unknown."""
        if self.state != "running" or not self.record or not self.record["attempts"] or not self.train_steps:
            return None
        attempt, beat = self.record["attempts"][-1], self._beat
        begun = seconds(attempt.get("first_step")) or seconds(attempt["started"])
        done = self.step - int(attempt["from_step"])
        if beat is None or begun is None or done <= 0 or beat[1] <= begun:
            return None
        return max(0.0, (self.train_steps - self.step) * (beat[1] - begun) / done)

    @property
    def last_sign(self) -> float | None:
        """When it gave its last sign of life, in seconds since 1970; None if it gave none."""
        attempts = self.record["attempts"] if self.record else []
        times = [seconds(attempts[-1][name]) for name in ("started", "ended")] if attempts else []
        times += [self._beat[1] if self._beat else None]
        times += [seconds(time) for time in self.submission.times] if self.submission else []
        return max((one for one in times if one is not None), default=None)

    @property
    def age(self) -> float | None:
        """Seconds since the last sign of life."""
        return None if self.last_sign is None else max(0.0, time.time() - self.last_sign)

    def as_dict(self) -> dict[str, Any]:
        """Returns the run for programs: its record, and its state."""
        return {
            "directory": str(self.directory),
            **(self.record or {"id": None, "status": None, "step": 0, "attempts": [], "metrics": {}}),
            "state": self.state,
            "steps_done": self.step,
            "seconds_left": self.seconds_left,
            "last_sign": self.last_sign,
            "submission": None if self.submission is None else self.submission.as_dict(),
        }

    @property
    def _beat(self) -> tuple[int, float] | None:
        beats = [last_beat(path) for path in loop_directories(self.directory)]
        return max((beat for beat in beats if beat is not None), key=lambda beat: beat[1], default=None)


def overview(root: Path) -> list[Overview]:
    """Returns every run at or below `root`, sorted by path, including submitted ones that have not begun."""
    _load_readers()
    submitted = {job.run_dir: job for _, find in _job_readers for job in find(root)}
    records = {run_folder(path): listable(record) for path, record in find_runs(root)}
    return [Overview(path, records.get(path), submitted.get(path)) for path in sorted({*records, *submitted})]


def listable(record: Record) -> Record:
    """Returns a record that can be listed; a damaged one becomes `unreadable`, so that it does not hide other runs."""
    unreadable = {"id": record["id"], "experiment": None, "backend": None, "status": "unreadable", "step": 0}
    return record if damage(record) is None else {**unreadable, "train_steps": None, "attempts": [], "metrics": {}}
