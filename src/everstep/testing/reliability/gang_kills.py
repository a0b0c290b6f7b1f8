"""Several processes that train one run, killed and frozen: do they end in the same bits as when nothing happens?

`everstep launch --processes` trains a dense network with random augmentation. In each part of a run, at a random step,
one of its processes gets SIGKILL, or SIGKILL while a checkpoint is being written, or SIGSTOP. Within a minute, a line
that the launcher prints must name it; all are restarted, and at the end of the run, the digest of its state must be
that of as many processes that nothing happened to. Most of the time is spent on starts: a run is hit five times, so
that it has six of them, not ten.
"""

import dataclasses
import json
import os
import random
import signal
import sys
import time
from pathlib import Path

from everstep.run import last_beat
from everstep.testing.reliability.killed_runs import differences
from everstep.testing.reliability.process import Job, Process

STEPS = 400
KILLS = 20
PER_RUN = 5
NAMED_WITHIN = 60.0
"""Seconds from the signal to the line that names the process."""
KINDS = ("rank 0", "another rank", "during a save", "frozen")
SHORT_RUN = (f"trainer.train_steps={STEPS}", "task.train_data.global_batch_size=32", "--no-export")


@dataclasses.dataclass(frozen=True)
class GangJob(Job):
    """One run of several processes.

    Attributes:
      processes: How many.
      restarts: How often they are restarted when one of them dies.
    """

    processes: int = 2
    restarts: int = 10

    def command(self) -> list[str]:
        """Returns the command line."""
        train = super().command()[4:]
        launch = ["launch", f"--processes={self.processes}", f"--max-restarts={self.restarts}", "--backoff=0.1"]
        return [sys.executable, "-m", "everstep", *launch, *train]

    def pids(self) -> list[int]:
        """Returns the processes of the current attempt, by rank."""
        members = json.loads((self.directory / "processes" / "members.json").read_text())["members"]
        return [member["pid"] for member in members]

    def is_saving(self) -> bool:
        """Whether a checkpoint is half written."""
        folder = self.directory / "checkpoints"
        return folder.is_dir() and any(name.startswith(".everstep-") for name in os.listdir(folder))


@dataclasses.dataclass
class Figures:
    """The figures of the experiment.

    Attributes:
      kills: By kind.
      wrong: Violations, one line each.
      named: The longest time, in seconds, from the signal until the process was named.
      restarted: The longest time, in seconds, until the next attempt had begun.
    """

    kills: dict[str, int] = dataclasses.field(default_factory=dict)
    wrong: list[str] = dataclasses.field(default_factory=list)
    named: dict[str, float] = dataclasses.field(default_factory=dict)
    restarted: dict[str, float] = dataclasses.field(default_factory=dict)

    def passed(self) -> bool:
        """Returns whether nothing was wrong."""
        return not self.wrong

    def line(self) -> str:
        """Returns the figures on one line."""
        kills = ", ".join(f"{count} {kind}" for kind, count in self.kills.items())
        named, restarted = (
            ", ".join(f"{kind} {seconds:.0f} s" for kind, seconds in longest.items())
            for longest in (self.named, self.restarted)
        )
        verdict = "passed" if self.passed() else "NOT PASSED"
        return (
            f"hits: {kills} | mismatches: {len(self.wrong)} | named after at most: {named} | "
            f"restarted after at most: {restarted} | {verdict}"
        )


def measure(folder: Path, processes: int, kills: int, seed: int, backend: str) -> Figures:
    """Hits runs several times each, with every kind in turn, and compares each run with one that was not hit."""
    choice, figures = random.Random(f"{processes} {backend} {seed}"), Figures()
    whole = GangJob("reliability/augmented", backend, folder / f"whole{processes}", SHORT_RUN, processes)
    whole.finish()
    expected = whole.record()
    kinds = [KINDS[number % len(KINDS)] for number in range(kills)]
    for begin in range(0, kills, PER_RUN):
        job = GangJob("reliability/augmented", backend, folder / f"hit{processes}-{begin}", SHORT_RUN, processes)
        found = _hit_often(job, kinds[begin : begin + PER_RUN], choice, figures) or list(differences(job, expected))
        figures.wrong += [f"{processes} processes, hits {begin + 1} and later: {line}" for line in found]
    return figures


def _hit_often(job: GangJob, kinds: list[str], choice: random.Random, figures: Figures) -> list[str]:
    """Hits the processes of one run, once in each part of it, and waits for its end; returns what was wrong."""
    process, since = job.start(), 0.0
    for number, kind in enumerate(kinds):
        part = STEPS // (len(kinds) + 1)
        step = choice.randrange(part * number + 15, part * (number + 1))
        rank = 0 if kind == "rank 0" else choice.randrange(1 if kind == "another rank" else 0, job.processes)
        if problem := _hit(job, process, kind, rank, step, since, figures):
            return [problem]
        since = time.time()
    return [] if process.wait() == 0 else [f"exit {process.code}: {process.said()}"]


def _hit(job: GangJob, process: Process, kind: str, rank: int, step: int, since: float, figures: Figures) -> str:
    """Hits a process once, and waits for the next attempt; returns what was wrong with that, else nothing."""
    reached = process.until(
        lambda: (beat := last_beat(job.directory)) is not None and beat[0] >= step and beat[1] > since
    )
    if kind == "during a save":
        reached = reached and process.until(job.is_saving)
    if not reached:
        return f"it ended before step {step}: {process.said()}"
    log = job.directory.with_suffix(".log")
    pid, said, begin = job.pids()[rank], log.stat().st_size, time.monotonic()
    os.kill(pid, signal.SIGSTOP if kind == "frozen" else signal.SIGKILL)
    figures.kills[kind] = figures.kills.get(kind, 0) + 1
    name = f"rank {rank} (pid {pid} on".encode()
    if not process.until(lambda: name in log.read_bytes()[said:]):
        return f"rank {rank} (pid {pid}) was not named: {process.said()}"
    seconds = time.monotonic() - begin
    figures.named[kind] = max(figures.named.get(kind, 0.0), seconds)
    if not process.until(lambda: job.pids()[rank] != pid):
        return f"it was not restarted: {process.said()}"
    figures.restarted[kind] = max(figures.restarted.get(kind, 0.0), time.monotonic() - begin)
    return "" if seconds <= NAMED_WITHIN else f"rank {rank} (pid {pid}) was named after {seconds:.0f} s"
