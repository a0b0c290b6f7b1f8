"""Whole runs killed at random instants: do they end in the same bits as one that was not?

Three models on two backends are trained by `everstep train`; the process gets SIGKILL at an instant drawn from its
whole life (starting, compiling, training, saving, evaluating, exporting), and the same command is started again, until
it finishes. The digest of the state (weights, slots, seeds, metrics) must be that of the uninterrupted run, every time.
"""

import csv
import dataclasses
import random
from collections.abc import Iterator
from pathlib import Path

from everstep.testing.reliability.process import Job

MODELS = ("reliability/cnn", "reliability/augmented", "reliability/recurrent")
KILLS = 50


@dataclasses.dataclass
class Figures:
    """The figures of an experiment.

    Attributes:
      kills: Processes killed.
      runs: Runs that finished.
      wrong: Violations, one line each.
      at: The number of kills by the phase of the process.
    """

    kills: int = 0
    runs: int = 0
    wrong: list[str] = dataclasses.field(default_factory=list)
    at: dict[str, int] = dataclasses.field(default_factory=dict)

    def passed(self) -> bool:
        """Returns whether nothing was wrong."""
        return not self.wrong

    def line(self) -> str:
        """Returns the figures on one line."""
        at = ", ".join(f"{count} {phase}" for phase, count in sorted(self.at.items()))
        return (
            f"kills {self.kills} ({at}), finished runs {self.runs} | states that differ from the "
            f"uninterrupted run: {len(self.wrong)} | {'passed' if self.passed() else 'NOT PASSED'}"
        )


def measure(folder: Path, experiment: str, backend: str, kills: int, seed: int, *overrides: str) -> Figures:
    """Kills one experiment that often, and compares all its runs with an uninterrupted one."""
    choice = random.Random(f"{experiment} {backend} {seed}")
    whole = Job(experiment, backend, folder / "whole", overrides)
    life = whole.finish().seconds
    expected = whole.record()
    figures = Figures()
    while figures.kills < kills:
        job = Job(experiment, backend, folder / f"killed{figures.runs}", overrides)
        _kill_until_done(job, choice, life, kills, figures)
        figures.runs += 1
        wrong = list(differences(job, expected))
        figures.wrong += [f"{line}; the loss differs from step {first_difference(job, whole)} on" for line in wrong]
    return figures


def _kill_until_done(job: Job, choice: random.Random, life: float, kills: int, figures: Figures) -> None:
    """Kills a run repeatedly, at random times of its expected duration; in the end it finishes."""
    while figures.kills < kills:
        process = job.start()
        if process.ends_within(choice.uniform(0, life)):
            if process.code:
                figures.wrong.append(f"{job.experiment} on {job.backend}: exit {process.code}: {process.said()}")
            return
        figures.kills += 1
        phase = phase_of(job, process.pid)
        process.kill()
        figures.at[phase] = figures.at.get(phase, 0) + 1
    job.finish()


def phase_of(job: Job, pid: int) -> str:
    """Returns the phase of a process, according to its directory."""
    if job.holder() != pid:
        return "starting or ending"
    if any(_unfinished(job.directory / "export")):
        return "exporting"
    if any(_unfinished(job.directory / "checkpoints")):
        return "saving"
    return "training or evaluating" if job.newest_checkpoint() else "before the first checkpoint"


def _unfinished(folder: Path) -> Iterator[Path]:
    yield from folder.glob(".everstep-*")


def differences(job: Job, expected: dict) -> Iterator[str]:
    """Yields in what a run differs from the uninterrupted one."""
    record = job.record()
    for key in ("status", "step", "epoch", "digest", "weights_digest"):
        if record[key] != expected[key]:
            reasons = [(attempt["from_step"], attempt["to_step"], attempt["reason"]) for attempt in record["attempts"]]
            yield (
                f"{job.experiment} on {job.backend}: {key} {record[key]!r}, not {expected[key]!r}; attempts: {reasons}"
            )
    for step, digest in expected["states"].items():
        if record["states"].get(step) != digest:
            recorded = record["states"].get(step, "none")
            yield f"{job.experiment} on {job.backend}: digest of step {step} {recorded}, not {digest}"


def first_difference(job: Job, whole: Job) -> int | None:
    """Returns the first step logged with another training loss; None if there is none."""
    tables = []
    for one in (job, whole):
        with open(one.directory / "history.csv", newline="") as file:
            tables.append({int(row["step"]): row["training_loss"] for row in csv.DictReader(file)})
    return next((step for step in sorted(tables[1]) if tables[0].get(step) != tables[1][step]), None)


def together(parts: list[Figures]) -> Figures:
    """Returns the sum of figures."""
    total = Figures()
    for part in parts:
        total.kills, total.runs = total.kills + part.kills, total.runs + part.runs
        total.wrong += part.wrong
        for phase, count in part.at.items():
            total.at[phase] = total.at.get(phase, 0) + count
    return total
