"""A run that is killed every two minutes for twenty: how much of what it computes does it keep?

`everstep train --max-restarts` supervises a run that saves by the clock; its process is killed again and again. The
bars: at least 95 % of the steps computed are kept, and a process that finds compiled programs does its first step
within 20 seconds of its start. What a killed process did after its last heartbeat is unknown; it is estimated from its
speed, and the run's own account (`run.json`) must agree with that but for a second or so per kill.
"""

import dataclasses
import os
import signal
import time
from pathlib import Path

from everstep.run import goodput
from everstep.testing.reliability.process import Job, Process

BAR, BAR_SECONDS = 0.95, 20.0
PERIOD, KILLS = 120.0, 10


@dataclasses.dataclass(frozen=True)
class Figures:
    """The figures of a run.

    Attributes:
      kills: Processes killed.
      kept: Steps of the run in the end.
      computed: Steps computed, as the run has recorded.
      seen: Steps computed, as estimated from outside.
      unseen: Steps that killed processes may have done between two signs of life.
      first_step: The longest time from the start of a process to its first step, of those that found a warm cache.
      summary: The goodput that the run prints.
    """

    kills: int
    kept: int
    computed: int
    seen: int
    unseen: int
    first_step: float
    summary: str

    @property
    def ratio(self) -> float:
        """The share of steps kept, by the worse of the two accounts."""
        return self.kept / max(self.computed, self.seen)

    def passed(self) -> bool:
        """Returns whether the bars were met, and the run's own account is right."""
        return self.ratio >= BAR and self.first_step <= BAR_SECONDS and self.is_honest()

    def is_honest(self) -> bool:
        """Returns whether the run has counted what was seen, but for what it does between two signs of life."""
        return abs(self.computed - self.seen) <= self.unseen + 0.01 * self.seen

    def line(self) -> str:
        """Returns the figures on one line."""
        return (
            f"kills {self.kills} | steps kept {self.kept} of {self.computed} computed (estimated from outside: "
            f"{self.seen}), {self.ratio:.1%} | start to first step, warm: at most {self.first_step:.1f} s | "
            f"{'passed' if self.passed() else 'NOT PASSED'}\n  goodput {self.summary}"
        )


@dataclasses.dataclass
class Seen:
    """One process as seen from outside.

    Attributes:
      pid: Its number.
      began: When it started.
      first: When its first step was seen.
      steps: How many it has done, as estimated.
      speed: Steps per second.
    """

    pid: int
    began: float
    first: float
    steps: int = 0
    speed: float = 0.0


def measure(folder: Path, backend: str, period: float, kills: int, checkpoint_seconds: float) -> Figures:
    """Lets a supervised run be killed that often, `period` seconds after its first step each time; then ends it."""
    words: tuple[str, ...] = (
        "trainer.train_steps=1000000000",
        "trainer.checkpoint_interval=0",
        "trainer.validation_interval=100000",
    )
    words += (f"trainer.checkpoint_seconds={checkpoint_seconds}", "trainer.steps_per_loop=20")
    job = Job("reliability/recurrent", backend, folder / "run", words)
    supervised = dataclasses.replace(job, overrides=(*words, "--max-restarts", str(kills)))
    process = supervised.start()
    seen = []
    try:
        for _ in range(kills):
            seen.append(_watch(job, process, period))
            os.kill(seen[-1].pid, signal.SIGKILL)
        seen.append(_watch(job, process, period))
    finally:
        process.send(signal.SIGTERM)  # the supervisor passes it on
        process.wait()
    return _figures(job, seen)


def _watch(job: Job, process: Process, period: float) -> Seen:
    """Watches one process for a while after its first step."""
    others = (None, job.holder(), process.pid)  # the dead one, and the supervisor, which writes down how it died
    if not process.until(lambda: job.holder() not in others and _beaten(job) > _started(job.holder() or 0)):
        raise RuntimeError(f"it was not started again:\n{process.said()}")
    pid = job.holder() or 0
    seen = Seen(pid, _started(pid), time.time())
    begin, first = job.heartbeat() or 0, _beaten(job)
    if process.ends_within(period):
        raise RuntimeError(f"it ended:\n{process.said()}")
    end, last = job.heartbeat() or 0, _beaten(job)
    seen.speed = (end - begin) / (last - first)
    seen.steps = round(end - job.record()["attempts"][-1]["from_step"] + seen.speed * (time.time() - last))
    return seen


def _beaten(job: Job) -> float:
    """Returns when the last sign of life was given."""
    try:
        return float((job.directory / ".heartbeat").read_text().split()[1])
    except (OSError, ValueError, IndexError):
        return 0.0


def _started(pid: int) -> float:
    """Returns when a process was started, in seconds since 1970."""
    try:
        ticks = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19])
    except OSError:
        return time.time()
    uptime = float(Path("/proc/uptime").read_text().split()[0])
    return time.time() - uptime + ticks / os.sysconf("SC_CLK_TCK")


def _figures(job: Job, seen: list[Seen]) -> Figures:
    record = job.record()
    own = goodput(record)
    last = record["attempts"][-1]
    outside = sum(one.steps for one in seen[:-1]) + last["to_step"] - last["from_step"]
    unseen = round(sum(one.speed for one in seen[:-1]) * 1.5)
    longest = max(one.first - one.began for one in seen[1:])
    return Figures(len(seen) - 1, own.steps_kept, own.steps_computed, outside, unseen, longest, str(own))
