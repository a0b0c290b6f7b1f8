"""One run directory, read for the page."""

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from everstep.errors import UsageError
from everstep.report import configuration
from everstep.report.curves import Curve, read_curves, steps_per_epoch
from everstep.report.facts import exported, facts, marks, origin, read_export, read_notes
from everstep.report.headline import Figure, headline
from everstep.report.splits import Split, read_splits
from everstep.run import record
from everstep.run.alive import is_held
from everstep.run.record_shape import damage


@dataclasses.dataclass
class Run:
    """What is known of a run.

    Attributes:
      name: What the page calls it.
      record: Its `run.json`; None where there is none, as for runs that were only evaluated.
      curves: The learning curves.
      splits: The data it was evaluated on, sample by sample.
      config: The text of its configuration, "" where there is none.
      export: What is known of its export: the step, and by what it was chosen; empty where that is not known.
      notes: What of its evaluation is not as it was in training, a line each.
    """

    name: str
    record: Mapping[str, Any] | None
    curves: list[Curve]
    splits: list[Split]
    config: str
    export: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    notes: Sequence[str] = ()

    def split(self, name: str) -> Split | None:
        """Returns the evaluation on the data of this name, if there is one."""
        return next((split for split in self.splits if split.name == name), None)

    def as_data(self) -> dict[str, Any]:
        """Returns the run as the page reads it."""
        return {
            "name": self.name,
            "status": (self.record or {}).get("status"),
            "origin": origin(self.record, self.export),
            "notes": list(self.notes),
            "facts": facts(self.record),
            "headline": [dataclasses.asdict(figure) for figure in self.figures()],
            "marks": marks(self.record),
            "exported": exported(self.export),
            "steps_per_epoch": steps_per_epoch(self.curves, self.record),
            "curves": [dataclasses.asdict(curve) for curve in self.curves],
            "splits": [split.as_data() for split in self.splits],
            "config": self.config,
        }

    def figures(self) -> list[Figure]:
        """Returns the numbers that stand at the top: what the export was chosen by first, metric by metric."""
        found = headline(self.record, [split.page for split in self.splits])
        chosen = str(self.export.get("metric", "")).removeprefix("val_")
        names = [chosen, *(figure.name for figure in found)]
        return sorted(found, key=lambda figure: names.index(figure.name))


def read_runs(directories: Sequence[Path]) -> list[Run]:
    """Returns the runs in some directories, under names that tell them apart.

    Raises:
      UsageError: One is no run, or has nothing to show.
    """
    return [_read(path, name) for path, name in zip(directories, names_of(directories), strict=True)]


def names_of(directories: Sequence[Path]) -> list[str]:
    """Returns a name for each run: that of its directory, or, where two are called the same, the whole path."""
    names = [directory.resolve().name for directory in directories]
    return names if len(set(names)) == len(names) else [str(directory) for directory in directories]


def told(directory: Path) -> Mapping[str, Any]:
    """Returns the record; a run that says it is running while nobody holds its directory was killed.

    Raises:
      UsageError: There is none, or it is damaged.
    """
    known = record.read(directory)
    if (wrong := damage(known)) is not None:
        raise UsageError(f"{str(directory / 'run.json')!r} is damaged: {wrong} is missing, or has no usable value")
    alone = not any(is_held(place) for place in (directory, directory / "training"))
    return {**known, "status": "killed"} if known["status"] == "running" and alone else known


def _read(directory: Path, name: str) -> Run:
    known = told(directory) if (directory / "run.json").is_file() else None
    splits = read_splits(directory / "reports")
    curves = read_curves(directory / "history.csv", known)
    if known is None and not splits and not curves:
        raise UsageError(f"{str(directory)!r} is not a run directory: there is no run.json in it, and no evaluation")
    run = Run(name, known, curves, splits, configuration.read(directory), read_export(directory), read_notes(directory))
    if not curves and not splits and not run.figures():
        raise UsageError(f"the run in {str(directory)!r} has nothing to show yet: no logged step, and no evaluation")
    return run
