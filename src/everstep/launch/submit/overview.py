"""Every run below a directory, with how far it really is: what it says itself, who is alive, what queues know."""

import dataclasses
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from everstep.launch.submit.submissions import Queues, Submission, find
from everstep.run.goodput import seconds
from everstep.run.heartbeat import last_beat
from everstep.run.layouts import export_record, loop_directories, results_file, run_folder
from everstep.run.lock import is_held
from everstep.run.record import Record, damage, find_runs


@dataclasses.dataclass(frozen=True)
class Overview:
    """One run.

    Attributes:
      directory: Its directory; of a project's run, its folder in `runs/`.
      record: Its `run.json`; None where it has not begun.
      submission: Its newest submission; None if it was never submitted.
    """

    directory: Path
    record: Record | None
    submission: Submission | None

    @property
    def state(self) -> str:
        """How it stands.

        `running`; `exporting` and `evaluating`, when a project's run is trained; `trained`, where nobody did that;
        `restarting`, between two attempts; `starting`, before the first step; `queued`; `finished`, `interrupted` or
        `failed`, as it said itself; `killed`: it said nothing more; `unreadable`. The job of a queue stands behind it
        in brackets.
        """
        said = str(self.record["status"]) if self.record else None
        if self._is_at_work:
            return self._phase(said)
        if self.submission is not None and self.submission.state == "queued":
            return f"queued ({self.submission.job})"
        if self.submission is not None and self.submission.state == "active" and not self._has_done_its_work:
            return f"{'running' if said is None else 'restarting'} ({self.submission.job})"
        if said is None or self._failed_since:
            return self._ended_early()
        if said == "finished" and self._lacks_evaluation:
            return "trained"
        return "killed" if said == "running" else said

    @property
    def _is_at_work(self) -> bool:
        return any(map(is_held, loop_directories(self.directory)))

    @property
    def _lacks_evaluation(self) -> bool:
        """Whether it is a project's run whose export or evaluation did not come to its end."""
        inside = any(path.is_dir() for path in loop_directories(self.directory)[1:])
        return inside and results_file(self.directory) is None

    @property
    def _has_done_its_work(self) -> bool:
        """Whether the newest job has finished the run, and has only to end itself, which takes seconds."""
        if self.record is None or self.record["status"] != "finished" or self._lacks_evaluation:
            return False
        submitted = seconds(self.submission.times[0]) if self.submission and self.submission.times else None
        attempts, evaluated = self.record["attempts"], results_file(self.directory)
        times = [seconds(attempts[-1]["started"])] if attempts else []
        times += [] if evaluated is None else [evaluated.stat().st_mtime]
        return submitted is None or any(time is not None and time >= submitted for time in times)

    @property
    def _failed_since(self) -> bool:
        """Whether the newest job failed without an attempt of its own: what the record says is of an earlier one."""
        job = self.submission
        if job is None or job.state != "ended" or not job.code or not job.times or not self.record:
            return False
        attempts = self.record["attempts"]
        begun, submitted = seconds(attempts[-1]["started"]) if attempts else None, seconds(job.times[0])
        return begun is None or (submitted is not None and begun < submitted)

    def _phase(self, said: str | None) -> str:
        if said == "finished":
            return "evaluating" if export_record(self.directory) is not None else "exporting"
        return "running" if said == "running" else "starting"

    def _ended_early(self) -> str:
        """Returns how a job ended that never came to a first step."""
        if self.submission is None or self.submission.state == "killed" or self.submission.code is None:
            return "killed"
        code = self.submission.code
        return f"failed (exit {code}, {self.submission.job})" if code else "finished"

    @property
    def step(self) -> int:
        """Steps done: as recorded, or as the process that is at work said last."""
        recorded = int(self.record["step"]) if self.record else 0
        beat = self._beat
        return max(recorded, beat[0]) if beat is not None and self._is_at_work else recorded

    @property
    def train_steps(self) -> int | None:
        """Steps in all; None where nobody has said."""
        return self.record["train_steps"] if self.record else None

    @property
    def seconds_left(self) -> float | None:
        """How long training will take at the pace of this attempt; None where that cannot be told."""
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
        """When it gave its last sign of life, in seconds since 1970."""
        attempts = self.record["attempts"] if self.record else []
        times = [seconds(attempts[-1][name]) for name in ("started", "ended")] if attempts else []
        times += [self._beat[1] if self._beat else None]
        times += [seconds(time) for time in self.submission.times] if self.submission else []
        return max((one for one in times if one is not None), default=None)

    @property
    def age(self) -> float | None:
        """Seconds since then."""
        return None if self.last_sign is None else max(0.0, time.time() - self.last_sign)

    def as_dict(self) -> dict[str, Any]:
        """Returns it for programs: the record, and what is known beside it."""
        return {
            "directory": str(self.directory),
            **(self.record or {"id": None, "status": None, "step": 0, "attempts": [], "metrics": {}}),
            "state": self.state,
            "steps_done": self.step,
            "seconds_left": self.seconds_left,
            "last_sign": self.last_sign,
            "submission": None if self.submission is None else _told(self.submission),
        }

    @property
    def _beat(self) -> tuple[int, float] | None:
        beats = [last_beat(path) for path in loop_directories(self.directory)]
        return max((beat for beat in beats if beat is not None), key=lambda beat: beat[1], default=None)


def overview(root: Path) -> list[Overview]:
    """Returns every run at or below `root`, sorted by path; those that have not begun but are submitted, too."""
    submitted = {one.run_dir: one for one in find(root, Queues())}
    records = {run_folder(path): listable(record) for path, record in find_runs(root)}
    return [Overview(path, records.get(path), submitted.get(path)) for path in sorted({*records, *submitted})]


def _told(submission: Submission) -> Mapping[str, Any]:
    names = ("id", "engine", "job", "submitted")
    return {**{name: submission.record.get(name) for name in names}, "state": submission.state, "code": submission.code}


def listable(record: Record) -> Record:
    """Returns a record that can be shown: one damaged file must not hide every other run."""
    told = {"id": record["id"], "experiment": None, "backend": None, "status": "unreadable", "step": 0}
    return record if damage(record) is None else {**told, "train_steps": None, "attempts": [], "metrics": {}}
