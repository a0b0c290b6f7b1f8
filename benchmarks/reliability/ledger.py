"""An epoch with kills: is every sample learned from exactly once?

`python -m benchmarks.reliability.ledger` takes about two minutes. The task counts how often each sample was part of a
step; the counts are a variable, so a checkpoint holds exactly the samples of the steps that it stands for. The process
is killed several times at random steps of the epoch. In the end every count must be 1.
"""

import argparse
import dataclasses
import random
import sys
import tempfile
from pathlib import Path

import numpy as np

from benchmarks.reliability.process import BACKENDS, Job

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
    """

    samples: int
    kills: int
    repeated: int
    missing: int
    steps: int
    lost: int

    def passed(self) -> bool:
        """Returns whether every sample is there once."""
        return self.repeated == self.missing == 0 and self.steps == self.samples // BATCH

    def line(self) -> str:
        """Returns the figures on one line."""
        return (
            f"samples {self.samples}, steps {self.steps}, kills {self.kills} (at least {self.lost} steps were computed "
            f"and not saved) | repeated {self.repeated}, missing {self.missing} | "
            f"{'passed' if self.passed() else 'NOT PASSED'}"
        )


def measure(folder: Path, backend: str, samples: int = SAMPLES, kills: int = KILLS, seed: int = 0) -> Figures:
    """Trains one epoch with that many kills; returns the figures of the ledger."""
    steps = samples // BATCH
    job = Job("reliability/ledger", backend, folder / "run", (f"task.samples={samples}", "--no-export"))
    choice, lost = random.Random(seed), 0
    for step in sorted(choice.sample(range(steps // 10, steps - steps // 5), kills)):
        process = job.start()
        if not process.until(lambda step=step: (job.newest_checkpoint() or 0) >= step):  # type: ignore[misc]
            raise RuntimeError(f"the run ended before step {step}:\n{process.said()}")
        process.ends_within(choice.uniform(0, 0.2))
        process.kill()
        lost += max(0, (job.heartbeat() or 0) - (job.newest_checkpoint() or 0))
    job.finish()
    counts = ledger_of(job)
    return Figures(len(counts), kills, int((counts > 1).sum()), int((counts < 1).sum()), job.record()["step"], lost)


def ledger_of(job: Job) -> np.ndarray:
    """Returns the counts in the newest checkpoint."""
    from everstep.checkpoint.orbax import OrbaxCheckpointer

    checkpointer = OrbaxCheckpointer(job.directory / "checkpoints", repair=False)
    state, _ = checkpointer.restore()
    checkpointer.close()
    return next(value for key, value in state.items() if key.startswith("task.counts"))


def main() -> int:
    """Prints the figures; returns 0 if the bar was met."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--small", action="store_true", help="6,000 samples, 1 kill")
    parser.add_argument("--backend", choices=BACKENDS, help="only this one")
    given = parser.parse_args()
    passed = True
    for backend in BACKENDS if given.backend is None else (given.backend,):
        with tempfile.TemporaryDirectory() as folder:
            figures = measure(Path(folder), backend, *((6000, 1) if given.small else (SAMPLES, KILLS)))
        print(f"{backend:11s} {figures.line()}", flush=True)
        passed = passed and figures.passed()
    return 0 if passed else 1


if __name__ == "__main__":
    sys.exit(main())
