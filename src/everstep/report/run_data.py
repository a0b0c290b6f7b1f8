"""One run directory, read for the report: its configuration, learning curves, facts, headline and evaluations."""

import contextlib
import dataclasses
import datetime
import hashlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from everstep import redaction, storage
from everstep.errors import UsageError
from everstep.report.numbers import finite, listed, shown
from everstep.report.split_data import Split, read_splits, split_name
from everstep.run import (
    EXPORTED_STEP,
    RECORD,
    STARTED,
    SUBMISSIONS,
    FinalWeights,
    damage,
    export_config,
    export_record,
    goodput,
    is_held,
    loop_directories,
    read_final_weights,
    record,
    results_file,
    runs_like,
    stopped_early,
    tag_words,
)
from everstep.tracking import SIDE_FIGURES, bare, direction, of_validation, read_history, value_text

_NO_SOURCES = hashlib.sha256().hexdigest()


def read_config(directory: Path) -> str:
    """Returns the text of a run's configuration without secrets; "" if there is none.

    It is the configuration that the model was trained with, since the run's own file may have been edited afterwards:
    that of the export, else that of the newest submitted job, else `config.yaml`, or the only YAML file.
    """
    chosen = export_config(directory) or _submitted_config(directory)
    if chosen is None:
        files = sorted([*directory.glob("*.yaml"), *directory.glob("*.yml")])
        stored = directory / "config.yaml"
        chosen = stored if stored in files else files[0] if len(files) == 1 else None
    return redaction.text(chosen.read_text("utf-8", errors="replace")) if chosen else ""


def _submitted_config(directory: Path) -> Path | None:
    """Returns the copy of the config file that the newest started job uses; a waiting job has not trained."""
    begun = sorted(path.parent for path in (directory / SUBMISSIONS).glob(f"*/{STARTED}"))
    with contextlib.suppress(UsageError, KeyError, TypeError):
        copy = begun[-1] / storage.read_json(begun[-1] / RECORD)["config"] if begun else None
        return copy if copy is not None and copy.is_file() else None
    return None


MOST_POINTS = 1_200
"""The largest number of points in a series; longer ones keep the extremes of each section."""


@dataclasses.dataclass
class Series:
    """Values over steps.

    Attributes:
      kind: "train" or "validation".
      steps: The steps, ascending.
      values: The value at each step; None if it is not finite.
      total: The number of points before thinning.
    """

    kind: str
    steps: list[int]
    values: list[float | None]
    total: int


@dataclasses.dataclass
class Curve:
    """One metric over all attempts.

    Attributes:
      name: The name of the metric, without the prefix for training or validation.
      side: Whether it measures speed instead of quality.
      series: At most one series of each kind.
    """

    name: str
    side: bool
    series: list[Series]


def read_curves(path: Path, record: Mapping[str, Any] | None) -> list[Curve]:
    """Returns the curves in a history, quality before speed; [] if there is no history."""
    found: dict[str, Curve] = {}
    for (name, kind), points in read_points(path, record).items():
        curve = found.setdefault(name, Curve(name, name in SIDE_FIGURES, []))
        curve.series.append(thinned(kind, points))
    return sorted(found.values(), key=lambda curve: curve.side)


def read_points(path: Path, record: Mapping[str, Any] | None) -> dict[tuple[str, str], list[tuple[int, float]]]:
    """Returns all points of a history, by metric and kind; {} if there is no history."""
    columns, rows = read_history(path)
    metrics = (record or {}).get("metrics", {})
    validation = set(metrics.get("validation", ())) - set(metrics.get("train", ()))
    found: dict[tuple[str, str], list[tuple[int, float]]] = {}
    for column in columns:
        points = [(step, _float_or_nan(cells[column])) for step, cells in rows if column in cells]
        if points and column != "epoch":
            found.setdefault(named(column, validation), points)
    return found


def steps_per_epoch(curves: Sequence[Curve], record: Mapping[str, Any] | None) -> int | None:
    """Returns the steps of an epoch if a run counts epochs, or logs once per epoch; None if it logs by steps."""
    if record is not None and record.get("steps_per_epoch"):
        return int(record["steps_per_epoch"])
    steps = sorted({step for curve in curves for series in curve.series for step in series.steps})
    length = steps[0] if steps else 0
    if record is None or not length or not record["epoch"] or any(step % length for step in steps):
        return None
    return length if record["step"] // length == record["epoch"] else None


def named(column: str, validation: set[str]) -> tuple[str, str]:
    """Returns the metric and the kind of a column: `validation_loss` is the validation series of `loss`.

    Args:
      column: The header of the column.
      validation: Names without a prefix that only validation uses.
    """
    if (name := bare(column)) != column:
        return name, "validation" if of_validation(column) else "train"
    return column, "validation" if column in validation else "train"


def thinned(kind: str, points: list[tuple[int, float]]) -> Series:
    """Returns a series short enough to draw: the lowest and highest value of every section, and both ends."""
    steps, values = np.array([step for step, _ in points]), np.array([value for _, value in points])
    kept = np.arange(len(values))
    if len(values) > MOST_POINTS:
        parts = np.array_split(kept, MOST_POINTS // 2 - 1)
        known = np.nan_to_num(values, nan=0.0)
        extremes = [(part[known[part].argmin()], part[known[part].argmax()]) for part in parts]
        kept = np.unique([0, len(values) - 1, *np.ravel(extremes)])
    return Series(kind, steps[kept].tolist(), listed(values[kept]), len(values))


def _float_or_nan(cell: str) -> float:
    try:
        return float(cell)
    except ValueError:
        return float("nan")


Fact = dict[str, str]
"""`name`, `value` and `detail`, which may be empty."""


def facts(record: Mapping[str, Any] | None) -> list[Fact]:
    """Returns the facts about a run in the order of display; unknown ones are left out."""
    if record is None:
        return []
    attempts, cost = record["attempts"], record["cost"]
    kept = goodput(record) if attempts else None
    took = _duration(kept.seconds) if kept and kept.seconds else ""
    speed, share = finite(cost.get("samples_per_second")), finite(cost.get("utilisation"))
    found = [
        fact("status", record["status"], attempts[-1]["reason"] if attempts else ""),
        fact("stopped early", _stop(record), (record.get("stopped_early") or {}).get("reason")),
        fact("steps", f"{record['step']:,}", f"epoch {record['epoch']}"),
        fact("attempts", str(len(attempts) or "")),
        fact("goodput", f"{kept.ratio:.1%}" if kept else "", str(kept or "")),
        fact("time", took, attempts[0]["started"][:16] if attempts else ""),
        fact("experiment", record["experiment"]),
        fact("name", record.get("name") if record.get("name") != record["experiment"] else ""),
        fact("tags", ", ".join(tag_words(record.get("tags") or {}))),
        fact("notes", record.get("notes")),
        fact("backend", record["backend"]),
        fact("parameters", short(cost.get("parameters")), f"{cost.get('trainable_parameters')} of them trained"),
        fact("FLOPs a step", short(cost.get("flops_per_train_step")), f"batches of {cost.get('batch_size')}"),
        fact("samples a second", short(speed)),
        fact("device", f"{cost.get('devices', 1)} × {cost['device']}" if cost.get("device") else ""),
        fact("utilisation", f"{share:.1%}" if share else ""),
    ]
    return [each for each in found if each["value"]]


def _stop(record: Mapping[str, Any]) -> str:
    return stopped_early(record).removeprefix("stopped early at ")


def read_export(directory: Path) -> dict[str, Any]:
    """Returns the content of the record of a run's export; {} if there is none.

    Raises:
      UsageError: The file is damaged.
    """
    path = export_record(directory)
    return {} if path is None else read_object(path)


def read_object(path: Path) -> dict[str, Any]:
    """Returns the object in a JSON file; {} if there is none.

    Raises:
      UsageError: The file is damaged.
    """
    found = storage.read_json(path) if path.is_file() else {}
    return found if isinstance(found, dict) else {}


def read_notes(directory: Path) -> list[str]:
    """Returns the notes of an evaluation on differences to training, a line each.

    Raises:
      UsageError: The file with the means of the evaluation is damaged.
    """
    path = results_file(directory)
    notes = None if path is None else read_object(path).get("notes")
    return [str(note) for note in notes] if isinstance(notes, list) else []


def origin(
    record: Mapping[str, Any] | None, export: Mapping[str, Any], final: FinalWeights | None = None
) -> list[Fact]:
    """Returns the facts below the title: the date, the code, and which epoch was exported and why.

    Args:
      record: The content of `run.json`.
      export: The result of `read_export`.
      final: The weights that the run ended with, where they are not those of its last step.
    """
    epoch, by = export.get("epoch"), chosen_by(export)
    exported_epoch = "" if epoch is None else f"epoch {int(epoch) + 1}{f', chosen by {by}' if by else ''}"
    if epoch is None and final is not None and final.is_exported:
        exported_epoch = final.place
    attempts, code = (record or {}).get("attempts") or [{}], (record or {}).get("code") or {}
    found = [
        fact("date", str(attempts[0].get("started") or "")[:10]),
        fact("code", code_name(export.get("code") or code), code.get("commit") or code.get("sources")),
        fact("exported", exported_epoch, by),
    ]
    return [each for each in found if each["value"]]


def code_name(code: Mapping[str, Any]) -> str:
    """Returns a short name of the code: its commit, or a digest of the sources; empty where there are none."""
    if code.get("commit"):
        return f"{code['commit'][:12]}{' with changes' if code.get('dirty') else ''}"
    return f"sources {code['sources'][:12]}" if code.get("sources") not in (None, "", _NO_SOURCES) else ""


def chosen_by(export: Mapping[str, Any]) -> str:
    """Returns how the exported epoch was chosen: `the lowest val_loss: 0.1234`; empty if it was not chosen."""
    metric, mode = export.get("metric"), {"min": "lowest", "max": "highest"}.get(export.get("mode", ""), "best")
    value = finite(export.get(metric)) if metric else None
    if not metric or "estimator" in export:
        return ""
    return f"the {mode} {metric}{'' if value is None else f': {shown(value)}'}"


def marks(record: Mapping[str, Any] | None) -> list[dict[str, Any]]:
    """Returns where later attempts began: `step`, and `text` with the reason."""
    attempts = (record or {}).get("attempts", [])
    return [
        {"step": later["from_step"], "text": f"attempt {number}, after: {before['reason'] or 'killed'}"}
        for number, (before, later) in enumerate(zip(attempts, attempts[1:], strict=False), start=2)
    ]


def exported(export: Mapping[str, Any], final: FinalWeights | None = None) -> dict[str, Any] | None:
    """Returns the exported step for the curves: `step`, and `text` with the reason; None if it is unknown.

    Args:
      export: The result of `read_export`.
      final: The weights that the run ended with, where they are not those of its last step.
    """
    step = finite(export.get(EXPORTED_STEP))
    by = chosen_by(export)
    if step is None:
        return None if final is None else {"step": final.step, "text": final.mark}
    return {"step": int(step), "text": f"exported{f', chosen by {by}' if by else ''}"}


def fact(name: str, value: Any, detail: Any = "") -> Fact:
    """Returns one fact; an unknown value is empty."""
    return {"name": name, "value": str(value or ""), "detail": str(detail or "")}


def short(value: Any) -> str:
    """Returns a number with three digits and a unit prefix: 1.32 M."""
    number = finite(value)
    if number is None:
        return ""
    for power, prefix in ((1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if number >= power:
            return f"{value_text(number / power, 3)} {prefix}"
    return value_text(number, 3)


def _duration(seconds: float) -> str:
    if seconds < 60:
        return f"{seconds:.0f} s"
    return str(datetime.timedelta(seconds=round(seconds)))


@dataclasses.dataclass(frozen=True)
class Figure:
    """One number of the headline.

    Attributes:
      name: The name of the metric.
      split: The data it was measured on.
      value: The number; None if it is not finite.
      better: "higher", "lower", or None if it is unknown.
      source: Where the number comes from.
      mark: Of which epoch it is, where that is not the last one: `epoch 4, exported; last 0.2453`.
    """

    name: str
    split: str
    value: float | None
    better: str | None
    source: str
    mark: str = ""


def headline(
    record: Mapping[str, Any] | None, pages: Sequence[Mapping[str, Any]], final: FinalWeights | None = None
) -> list[Figure]:
    """Returns the figures of evaluations; without any, those of the logs.

    Args:
      record: The content of `run.json`.
      pages: The evaluations sample by sample.
      final: The weights that the run ended with, where they are not those of its last step.
    """
    found = [figure for page in pages for figure in _of_page(page)]
    metrics = (record or {}).get("metrics", {})
    names = {name for name, logs in metrics.items() if logs} - {page["split"] for page in pages}
    kinds = [kind for kind in ("validation", "train") if kind in names and not found]
    return found + [figure for kind in kinds for figure in _of_logs(kind, metrics[kind], final)]


def _of_page(page: Mapping[str, Any]) -> list[Figure]:
    known, split = {metric["name"]: metric["better"] for metric in page["metrics"]}, split_name(page)
    overall = [
        Figure(name, split, finite(value), known.get(name) or direction(name), "the model's own metric")
        for name, value in page["overall"].items()
    ]
    means = [
        Figure(m["name"], split, m["mean"], m["better"], f"mean over {m['count']:,} samples")
        for m in page["metrics"]
        if m["name"] not in page["overall"]
    ]
    return overall + means


def _of_logs(kind: str, logs: Mapping[str, Any], final: FinalWeights | None) -> Iterator[Figure]:
    ended = {} if final is None else final.metrics.get(kind, {})
    for name, last in logs.items():
        if name in SIDE_FIGURES:
            continue
        value, mark, source = finite(last), "", "the last logs"
        if final is not None and name in ended:
            mark = f"{final.mark}; last {'not finite' if value is None else shown(value)}"
            value, source = finite(ended[name]), f"the logs of {final.place}, whose weights the model has"
        yield Figure(name, kind, value, direction(name), source, mark)


@dataclasses.dataclass
class RunData:
    """One run, read for the report.

    Attributes:
      name: The name shown on the page.
      record: Its `run.json`; None if there is none, as for runs that were only evaluated.
      curves: The learning curves.
      splits: The evaluations sample by sample.
      config: The text of its configuration, "" if there is none.
      export: The content of `exported/export.json`: the step, and how it was chosen; empty if there is none.
      notes: Differences between its evaluation and its training, a line each.
      final: The weights that it ended with, where they are not those of its last step.
    """

    name: str
    record: Mapping[str, Any] | None
    curves: list[Curve]
    splits: list[Split]
    config: str
    export: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    notes: Sequence[str] = ()
    final: FinalWeights | None = None

    def split(self, name: str) -> Split | None:
        """Returns the evaluation on the split with this name, if there is one."""
        return next((split for split in self.splits if split.name == name), None)

    def as_data(self) -> dict[str, Any]:
        """Returns the run as the page reads it."""
        return {
            "name": self.name,
            "status": (self.record or {}).get("status"),
            "origin": origin(self.record, self.export, self.final),
            "notes": list(self.notes),
            "facts": facts(self.record),
            "headline": [dataclasses.asdict(figure) for figure in self.figures()],
            "marks": marks(self.record),
            "exported": exported(self.export, self.final),
            "ended": None if self.final is None else {"step": self.final.step, "text": self.final.mark},
            "steps_per_epoch": steps_per_epoch(self.curves, self.record),
            "curves": [dataclasses.asdict(curve) for curve in self.curves],
            "splits": [split.as_data() for split in self.splits],
            "config": self.config,
        }

    def figures(self) -> list[Figure]:
        """Returns the headline, grouped by metric; the metric that the export was chosen by comes first."""
        found = headline(self.record, [split.page for split in self.splits], self.final)
        chosen = str(self.export.get("metric", "")).removeprefix("val_")
        names = [chosen, *(figure.name for figure in found)]
        return sorted(found, key=lambda figure: names.index(figure.name))


def read_runs(directories: Sequence[Path]) -> list[RunData]:
    """Reads runs, with unique names.

    Raises:
      UsageError: A directory is not a run, or has nothing to show.
    """
    return [_read_run(path, name) for path, name in zip(directories, names_of(directories), strict=True)]


def names_of(directories: Sequence[Path]) -> list[str]:
    """Returns a name for each run: that of its directory, or its whole path if two have the same name."""
    names = [directory.resolve().name for directory in directories]
    return names if len(set(names)) == len(names) else [str(directory) for directory in directories]


def read_record(directory: Path) -> Mapping[str, Any]:
    """Returns a run's record; a run recorded as running whose directory no process has locked counts as killed.

    Raises:
      UsageError: There is no record, or it is damaged.
    """
    known = record.read(directory)
    if (wrong := damage(known)) is not None:
        raise UsageError(
            f"is damaged: {wrong} is missing, or has no usable value",
            key="run.json",
            received=str(directory / "run.json"),
        )
    alone = not any(map(is_held, loop_directories(directory)))
    return {**known, "status": "killed"} if known["status"] == "running" and alone else known


def _read_run(directory: Path, name: str) -> RunData:
    known = read_record(directory) if (directory / "run.json").is_file() else None
    splits = read_splits(directory / "reports")
    curves = read_curves(directory / "history.csv", known)
    if known is None and not splits and not curves:
        reason = "contains neither run.json nor an evaluation"
        raise UsageError(reason, key="RUN", received=str(directory), remedy=runs_like(directory))
    final, config = read_final_weights(known, directory), read_config(directory)
    run = RunData(name, known, curves, splits, config, read_export(directory), read_notes(directory), final)
    if not curves and not splits and not run.figures():
        raise UsageError("has no logged step and no evaluation yet", key="RUN", received=str(directory))
    return run
