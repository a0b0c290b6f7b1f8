"""An epoch with kills: is every sample learned from exactly once?

The task counts how often each sample was part of a step; the counts are a variable, so a checkpoint holds exactly the
samples of the steps that it stands for. The process is killed several times at random steps of the epoch; a run that
ends before its kill is an error. In the end every count must be 1.

With `--processes 2 4 3` the first attempt is trained by two processes, the second by four, the third by three, and so
on. One of them is killed, so that all end; each process reads only its rows of a batch.
"""

import contextlib
import dataclasses
import os
import random
import signal
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from everstep.checkpoint import OrbaxCheckpointer
from everstep.run import last_beat
from everstep.testing.reliability.gang_kills import GangJob
from everstep.testing.reliability.process import Job, Process

SAMPLES, BATCH, KILLS = 60_000, 60, 4


@dataclasses.dataclass(frozen=True)
class Figures:
    """The figures of the ledger.

    Attributes:
      samples: Samples of the epoch.
      kills: Processes killed.
      repeated: Samples learned from more than once.
      missing: Samples never learned from.
      steps: Steps done.
      lost: Steps that were computed before a kill and were not saved.
      processes: How many have trained each attempt.
    """

    samples: int
    kills: int
    repeated: int
    missing: int
    steps: int
    lost: int
    processes: tuple[int, ...] = (1,)

    def passed(self) -> bool:
        """Returns whether every sample is there once."""
        return self.repeated == self.missing == 0 and self.steps == self.samples // BATCH

    def line(self) -> str:
        """Returns the figures on one line."""
        processes = ", ".join(map(str, self.processes))
        return (
            f"samples {self.samples}, steps {self.steps}, processes {processes}, kills {self.kills} (at least "
            f"{self.lost} steps were computed and not saved) | repeated {self.repeated}, missing {self.missing} | "
            f"{'passed' if self.passed() else 'NOT PASSED'}"
        )


def measure(
    folder: Path, backend: str, samples: int = SAMPLES, kills: int = KILLS, seed: int = 0, sizes: Sequence[int] = (1,)
) -> Figures:
    """Trains one epoch with that many kills, in attempts of these numbers of processes; returns the figures."""
    steps = samples // BATCH
    jobs = [_job(folder / "run", backend, samples, sizes[number % len(sizes)]) for number in range(kills + 1)]
    choice, lost = random.Random(seed), 0
    for job, step in zip(jobs, sorted(choice.sample(range(steps // 10, steps - steps // 5), kills)), strict=False):
        process, begin = job.start(), time.time()
        if not process.until(lambda job=job, step=step, begin=begin: _reached(job, step, begin)):  # type: ignore[misc]
            raise RuntimeError(f"the run ended before step {step}:\n{process.said()}")
        _kill(job, process, choice)
        lost += max(0, (job.heartbeat() or 0) - (job.newest_checkpoint() or 0))
    jobs[-1].finish()
    counts, record = ledger_of(jobs[-1]), jobs[-1].record()
    processes = tuple(attempt["processes"] for attempt in record["attempts"])
    repeated, missing = int((counts > 1).sum()), int((counts < 1).sum())
    return Figures(len(counts), kills, repeated, missing, record["step"], lost, processes)


def _reached(job: Job, step: int, begin: float) -> bool:
    """Whether the attempt that began at this time has trained up to this step or a later one."""
    beat = last_beat(job.directory)
    return beat is not None and beat[0] >= step and beat[1] > begin


def _job(directory: Path, backend: str, samples: int, processes: int) -> Job:
    words = (f"task.samples={samples}", "--no-export")
    if processes == 1:
        return Job("reliability/ledger", backend, directory, words)
    return GangJob("reliability/ledger", backend, directory, words, processes, restarts=0)


def _kill(job: Job, process: Process, choice: random.Random) -> None:
    """Kills the process within a few steps, or one of several, whose launcher then ends the others.

    Raises:
      RuntimeError: It had ended before.
    """
    process.ends_within(choice.uniform(0, 0.05))
    pid = choice.choice(job.pids()) if isinstance(job, GangJob) else process.pid
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)
    if process.wait() != 128 + signal.SIGKILL:
        raise RuntimeError(f"the run ended with {process.code} before it was killed:\n{process.said()}")


def ledger_of(job: Job) -> np.ndarray:
    """Returns the counts in the newest checkpoint."""
    checkpointer = OrbaxCheckpointer(job.directory / "checkpoints", repair=False)
    state, _ = checkpointer.restore()
    checkpointer.close()
    return next(value for key, value in state.items() if key.startswith("task.counts"))
