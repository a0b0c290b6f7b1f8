"""Curves of a run with kills: is every step there once, with the number that the uninterrupted run has?

A run is killed several times at random steps. In the end `history.csv`, the TensorBoard events (as TensorBoard reads
them, which drops what a restart has taken back) and MLflow must have each point exactly once, all in one MLflow run,
and what was measured must be what the uninterrupted run measured; only speeds may differ.
"""

import collections
import csv
import dataclasses
import random
from collections.abc import Iterable, Iterator
from pathlib import Path

from everstep.testing.reliability.process import Job
from everstep.testing.servers.mlflow_server import points_of, runs_of
from everstep.types import CLOCKS

EXPERIMENT = "reliability/augmented"
STEPS, KILLS = 300, 5
SPEEDS = CLOCKS
LATE = "mfu"
"""A speed that each process logs from its tenth second on only, so that a point may be missing in either run."""

Points = collections.Counter[tuple[str, int, float]]
"""How often each (name, step, value) is there; the value of a speed is 0."""


@dataclasses.dataclass
class Figures:
    """What was found.

    Attributes:
      kills: Processes killed.
      points: Points in each place.
      wrong: Points that are missing, or there twice, or differ; one line each.
    """

    kills: int
    points: dict[str, int] = dataclasses.field(default_factory=dict)
    wrong: list[str] = dataclasses.field(default_factory=list)

    def passed(self) -> bool:
        """Returns whether nothing was wrong."""
        return not self.wrong

    def line(self) -> str:
        """Returns the figures on one line."""
        points = ", ".join(f"{where} {count}" for where, count in self.points.items())
        return (
            f"kills {self.kills}, points: {points} | missing, double or different: {len(self.wrong)} | "
            f"{'passed' if self.passed() else 'NOT PASSED'}"
        )


def measure(folder: Path, backend: str, steps: int = STEPS, kills: int = KILLS, seed: int = 0) -> Figures:
    """Kills a run `kills` times; compares its curves with those of an uninterrupted one."""
    (folder / "a").mkdir()
    (folder / "b").mkdir()
    words = (f"trainer.train_steps={steps}", "trainer.tracking.mlflow=true", "--no-export")
    whole = Job(EXPERIMENT, backend, folder / "a" / "run", words)
    killed = Job(EXPERIMENT, backend, folder / "b" / "run", words)
    whole.finish()
    kill_at(killed, sorted(random.Random(seed).sample(range(12, steps - 20), kills)))
    killed.finish()
    figures = Figures(kills)
    for name, read in (("history.csv", history), ("TensorBoard", tensorboard), ("MLflow", mlflow)):
        expected, points = read(whole), read(killed)
        figures.points[name] = points.total()
        figures.wrong += [f"{name}: {line}" for line in differences(points, expected)]
    return figures


def kill_at(job: Job, steps: Iterable[int]) -> None:
    """Kills a run each time it has saved at least the next of `steps`."""
    for step in steps:
        process = job.start()
        if not process.until(lambda step=step: (job.newest_checkpoint() or 0) >= step):  # type: ignore[misc]
            raise RuntimeError(f"the run ended before step {step}:\n{process.said()}")
        process.kill()


def differences(points: Points, expected: Points) -> Iterator[str]:
    """Yields what is not there exactly as often as it should be."""
    for point in sorted({*points, *expected}):
        is_as_often = points[point] == expected[point] or point[0].endswith(LATE)
        if not is_as_often or points[point] > 1:
            yield f"{point} is there {points[point]} times, in the uninterrupted run {expected[point]} times"


def history(job: Job) -> Points:
    """Returns what `history.csv` has."""
    with open(job.directory / "history.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    cells = ((name, int(row["step"]), cell) for row in rows for name, cell in row.items() if cell and name != "step")
    return _points(cells)


def tensorboard(job: Job) -> Points:
    """Returns what TensorBoard shows: it drops points beyond the step that a restart begins at."""
    from tensorboard.backend.event_processing.event_accumulator import SCALARS, EventAccumulator

    found = []
    for kind in ("train", "validation"):
        events = EventAccumulator(str(job.directory / kind), size_guidance={SCALARS: 0}, purge_orphaned_data=True)
        events.Reload()
        for tag in events.Tags()["scalars"]:
            found += [(f"{kind}/{tag}", event.step, event.value) for event in events.Scalars(tag)]
    return _points(found)


def mlflow(job: Job) -> Points:
    """Returns what MLflow has of the run.

    Raises:
      RuntimeError: There is not exactly one MLflow run.
    """
    uri = f"sqlite:///{job.directory.parent / 'mlflow.db'}"
    runs = runs_of(uri, job.experiment)
    if len(runs) != 1:
        raise RuntimeError(f"MLflow has {len(runs)} runs, not one")
    return _points(points_of(uri, runs[0]).elements())


def _points(found: Iterable[tuple[str, int, object]]) -> Points:
    return collections.Counter(
        (name, step, 0.0 if name.endswith(SPEEDS) else float(str(value))) for name, step, value in found
    )
