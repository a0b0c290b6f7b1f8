"""One run directory, read for the report: its configuration, learning curves, facts, headline and evaluations."""

import contextlib
import dataclasses
import datetime
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from everstep import redaction, storage
from everstep.errors import UsageError
from everstep.evaluation.report.numbers import finite, listed, shown
from everstep.evaluation.report.split_data import Split, read_splits
from everstep.run import record
from everstep.run.goodput import goodput
from everstep.run.launcher import RECORD, STARTED, SUBMISSIONS
from everstep.run.layouts import export_config, export_record, loop_directories, results_file
from everstep.run.lock import is_held
from everstep.run.record import damage
from everstep.tracking.history import read_history
from everstep.tracking.metric_names import SIDE_FIGURES, bare, direction, of_validation

_BLACKED_OUT = re.compile(rf"([:\[,-]\s*)({re.escape(redaction.MARK)})(?=\s|[,\]}}]|$)", re.MULTILINE)
"""A value that redaction has left as three stars, which YAML takes for an alias."""


def read_config(directory: Path) -> str:
    """Returns the text of a run's configuration without secrets; "" for none.

    It is what the model was trained with, for the run's own file may have been edited since: that of the export,
    else what the newest job was submitted with, else `config.yaml`, or the only YAML file.
    """
    chosen = export_config(directory) or _submitted(directory) or _own(directory)
    return redaction.text(chosen.read_text("utf-8", errors="replace")) if chosen else ""


def _submitted(directory: Path) -> Path | None:
    """Returns the copy of the config file that the newest job uses; one that waits has trained nothing."""
    begun = sorted(path.parent for path in (directory / SUBMISSIONS).glob(f"*/{STARTED}"))
    with contextlib.suppress(UsageError, KeyError, TypeError):
        copy = begun[-1] / storage.read_json(begun[-1] / RECORD)["config"] if begun else None
        return copy if copy is not None and copy.is_file() else None
    return None


def _own(directory: Path) -> Path | None:
    files = sorted([*directory.glob("*.yaml"), *directory.glob("*.yml")])
    stored = directory / "config.yaml"
    return stored if stored in files else files[0] if len(files) == 1 else None


def differences(texts: Sequence[str]) -> list[dict[str, Any]]:
    """Returns every key whose value is not the same in all texts: `key`, and `values`, one text or None for each.

    A text that is no mapping in YAML is left out: see `incomparable`.
    """
    flat = [dict(_leaves(_parsed(text), "")) for text in texts]
    left_out = incomparable(texts)
    keys = list(dict.fromkeys(key for leaves in flat for key in leaves))
    rows = [{"key": key, "values": [leaves.get(key) for leaves in flat]} for key in keys]
    return [row for row in rows if len({value for i, value in enumerate(row["values"]) if i not in left_out}) > 1]


def incomparable(texts: Sequence[str]) -> list[int]:
    """Returns the places of texts that cannot be compared key by key; none where all are the same text anyway."""
    if len(set(texts)) == 1:
        return []
    return [place for place, text in enumerate(texts) if text.strip() and not isinstance(_parsed(text), dict)]


def _parsed(text: str) -> Any:
    for attempt in (text, _BLACKED_OUT.sub(r"\1'\2'", text)):
        with contextlib.suppress(yaml.YAMLError, ValueError, RecursionError):
            return yaml.safe_load(attempt)
    return None


def _leaves(value: Any, path: str) -> Iterator[tuple[str, str]]:
    """Yields dotted keys with their values as text; a list is one value."""
    if isinstance(value, dict) and value:
        for key, item in value.items():
            yield from _leaves(item, f"{path}.{key}" if path else str(key))
    elif path:
        yield path, str(value)


MOST_POINTS = 1_200
"""Points of a series that the page draws; of more, the extremes of each stretch are kept."""


@dataclasses.dataclass
class Series:
    """Numbers over steps; None where one is not finite.

    Attributes:
      kind: "train" or "validation".
      steps: Ascending.
      values: As many.
      total: How many there were before they were thinned out.
    """

    kind: str
    steps: list[int]
    values: list[float | None]
    total: int


@dataclasses.dataclass
class Curve:
    """One metric over all attempts.

    Attributes:
      name: The metric, without what tells training from validation.
      side: Whether it says how fast it went, not how good it is.
      series: At most one of each kind.
    """

    name: str
    side: bool
    series: list[Series]


def read_curves(path: Path, record: Mapping[str, Any] | None) -> list[Curve]:
    """Returns the curves in a history, those that say how good the model is first; [] if there is none."""
    found: dict[str, Curve] = {}
    for (name, kind), points in read_points(path, record).items():
        curve = found.setdefault(name, Curve(name, name in SIDE_FIGURES, []))
        curve.series.append(thinned(kind, points))
    return sorted(found.values(), key=lambda curve: curve.side)


def read_points(path: Path, record: Mapping[str, Any] | None) -> dict[tuple[str, str], list[tuple[int, float]]]:
    """Returns all points of a history, by the metric and its kind; {} if there is none."""
    columns, rows = read_history(path)
    validation = _only_validation(record)
    found: dict[tuple[str, str], list[tuple[int, float]]] = {}
    for column in columns:
        points = [(step, _number(cells[column])) for step, cells in rows if column in cells]
        if points and column != "epoch":
            found.setdefault(named(column, validation), points)
    return found


def steps_per_epoch(curves: Sequence[Curve], record: Mapping[str, Any] | None) -> int | None:
    """Returns how many steps an epoch has, where a run logs at the end of each; None where it counts steps."""
    steps = sorted({step for curve in curves for series in curve.series for step in series.steps})
    length = steps[0] if steps else 0
    if record is None or not length or not record["epoch"] or any(step % length for step in steps):
        return None
    return length if record["step"] // length == record["epoch"] else None


def named(column: str, validation: set[str]) -> tuple[str, str]:
    """Returns the metric and the kind of a column: `validation_loss` is the validation series of `loss`.

    Args:
      column: Its header.
      validation: Plain names that only validation uses.
    """
    if (name := bare(column)) != column:
        return name, "validation" if of_validation(column) else "train"
    return column, "validation" if column in validation else "train"


def thinned(kind: str, points: list[tuple[int, float]]) -> Series:
    """Returns a series that a page can draw: of every stretch of steps the lowest and the highest, and both ends."""
    steps, values = np.array([step for step, _ in points]), np.array([value for _, value in points])
    kept = np.arange(len(values))
    if len(values) > MOST_POINTS:
        parts = np.array_split(kept, MOST_POINTS // 2 - 1)
        known = np.nan_to_num(values, nan=0.0)
        extremes = [(part[known[part].argmin()], part[known[part].argmax()]) for part in parts]
        kept = np.unique([0, len(values) - 1, *np.ravel(extremes)])
    return Series(kind, steps[kept].tolist(), listed(values[kept]), len(values))


def _number(cell: str) -> float:
    try:
        return float(cell)
    except ValueError:
        return float("nan")


def _only_validation(record: Mapping[str, Any] | None) -> set[str]:
    metrics = (record or {}).get("metrics", {})
    return set(metrics.get("validation", ())) - set(metrics.get("train", ()))


STEP = "best_ckpt_global_step"
"""Under which name `export.json` has the step."""

Fact = dict[str, str]
"""`name` and `value`, and `detail` where there is more to say."""


def facts(record: Mapping[str, Any] | None) -> list[Fact]:
    """Returns the facts in the order in which they are shown; what is not known is left out."""
    if record is None:
        return []
    found = [*_course(record), *_place(record), *_cost(record["cost"])]
    return [each for each in found if each["value"]]


def read_export(directory: Path) -> dict[str, Any]:
    """Returns the facts that a run recorded about its export; empty where there are none.

    Raises:
      UsageError: It is damaged.
    """
    path = export_record(directory)
    return {} if path is None else read_object(path)


def read_object(path: Path) -> dict[str, Any]:
    """Returns the object in a JSON file; an empty one if there is none.

    Raises:
      UsageError: It is damaged.
    """
    found = storage.read_json(path) if path.is_file() else {}
    return found if isinstance(found, dict) else {}


def read_notes(directory: Path) -> list[str]:
    """Returns what of an evaluation is not as it was in training, a line each.

    Raises:
      UsageError: The file with the means of the evaluation is damaged.
    """
    path = results_file(directory)
    notes = None if path is None else read_object(path).get("notes")
    return [str(note) for note in notes] if isinstance(notes, list) else []


def origin(record: Mapping[str, Any] | None, export: Mapping[str, Any]) -> list[Fact]:
    """Returns what stands below the title: when, from which code, and which epoch was exported and why.

    Args:
      record: `run.json`.
      export: What `read_export` returned.
    """
    attempts, code = (record or {}).get("attempts") or [{}], (record or {}).get("code") or {}
    found = [
        fact("date", str(attempts[0].get("started") or "")[:10]),
        fact("code", code_name(export.get("code") or code), code.get("commit") or code.get("sources")),
        fact("exported", _exported(export), chosen_by(export)),
    ]
    return [each for each in found if each["value"]]


def code_name(code: Mapping[str, Any]) -> str:
    """Returns which code it is, short: a commit, or a digest of the sources."""
    if code.get("commit"):
        return f"{code['commit'][:12]}{' with changes' if code.get('dirty') else ''}"
    return f"sources {code['sources'][:12]}" if code.get("sources") else ""


def chosen_by(export: Mapping[str, Any]) -> str:
    """Returns by what the exported epoch was chosen: `the lowest val_loss: 0.1234`; nothing where it was not."""
    metric, mode = export.get("metric"), {"min": "lowest", "max": "highest"}.get(export.get("mode", ""), "best")
    value = finite(export.get(metric)) if metric else None
    if not metric or "estimator" in export:
        return ""
    return f"the {mode} {metric}{'' if value is None else f': {shown(value)}'}"


def _exported(export: Mapping[str, Any]) -> str:
    if export.get("epoch") is None:
        return ""
    by = chosen_by(export)
    return f"epoch {int(export['epoch']) + 1}{f', chosen by {by}' if by else ''}"


def marks(record: Mapping[str, Any] | None) -> list[dict[str, Any]]:
    """Returns where attempts after the first began: `step`, and `text` that says why."""
    attempts = (record or {}).get("attempts", [])
    return [
        {"step": later["from_step"], "text": f"attempt {number}, after: {before['reason'] or 'killed'}"}
        for number, (before, later) in enumerate(zip(attempts, attempts[1:], strict=False), start=2)
    ]


def exported(export: Mapping[str, Any]) -> dict[str, Any] | None:
    """Returns which step was exported, for the curves: `step`, and `text` that says why; None where nobody knows."""
    step = finite(export.get(STEP))
    by = chosen_by(export)
    return None if step is None else {"step": int(step), "text": f"exported{f', chosen by {by}' if by else ''}"}


def _course(record: Mapping[str, Any]) -> list[Fact]:
    attempts = record["attempts"]
    kept = goodput(record) if attempts else None
    took = _duration(kept.seconds) if kept and kept.seconds else ""
    return [
        fact("status", record["status"], attempts[-1]["reason"] if attempts else ""),
        fact("steps", f"{record['step']:,}", f"epoch {record['epoch']}"),
        fact("attempts", str(len(attempts) or "")),
        fact("goodput", f"{kept.ratio:.1%}" if kept else "", str(kept or "")),
        fact("time", took, attempts[0]["started"][:16] if attempts else ""),
    ]


def _place(record: Mapping[str, Any]) -> list[Fact]:
    return [fact("experiment", record["experiment"]), fact("backend", record["backend"])]


def _cost(cost: Mapping[str, Any]) -> list[Fact]:
    speed, share = finite(cost.get("samples_per_second")), finite(cost.get("utilisation"))
    return [
        fact("parameters", short(cost.get("parameters")), f"{cost.get('trainable_parameters')} of them trained"),
        fact("FLOPs a step", short(cost.get("flops_per_train_step")), f"batches of {cost.get('batch_size')}"),
        fact("samples a second", short(speed)),
        fact("device", f"{cost.get('devices', 1)} × {cost['device']}" if cost.get("device") else ""),
        fact("utilisation", f"{share:.1%}" if share else ""),
    ]


def fact(name: str, value: Any, detail: Any = "") -> Fact:
    """Returns one fact; what is not known has an empty value."""
    return {"name": name, "value": str(value or ""), "detail": str(detail or "")}


def short(value: Any) -> str:
    """Returns a number with three digits and a prefix: 1.32 M."""
    number = finite(value)
    if number is None:
        return ""
    for power, prefix in ((1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if number >= power:
            return f"{number / power:.3g} {prefix}"
    return f"{number:.3g}"


def _duration(seconds: float) -> str:
    if seconds < 60:
        return f"{seconds:.0f} s"
    return str(datetime.timedelta(seconds=round(seconds)))


@dataclasses.dataclass(frozen=True)
class Figure:
    """One number.

    Attributes:
      name: Of the metric.
      split: On which data.
      value: The number, None where it is not finite.
      better: "higher", "lower", or None where that is not known.
      source: Where it comes from.
    """

    name: str
    split: str
    value: float | None
    better: str | None
    source: str


def headline(record: Mapping[str, Any] | None, pages: Sequence[Mapping[str, Any]]) -> list[Figure]:
    """Returns the figures, the most telling first."""
    found = [figure for page in pages for figure in _of_page(page)]
    metrics = (record or {}).get("metrics", {})
    names = {name for name, logs in metrics.items() if logs} - {page["split"] for page in pages}
    kinds = [kind for kind in ("validation", "train") if kind in names and not found]
    return found + [figure for kind in kinds for figure in _of_logs(kind, metrics[kind])]


def _of_page(page: Mapping[str, Any]) -> list[Figure]:
    known = {metric["name"]: metric["better"] for metric in page["metrics"]}
    overall = [
        Figure(name, page["split"], finite(value), known.get(name) or direction(name), "the model's own metric")
        for name, value in page["overall"].items()
    ]
    means = [
        Figure(m["name"], page["split"], m["mean"], m["better"], f"mean over {m['count']:,} samples")
        for m in page["metrics"]
        if m["name"] not in page["overall"]
    ]
    return overall + means


def _of_logs(kind: str, logs: Mapping[str, Any]) -> list[Figure]:
    return [
        Figure(name, kind, finite(value), direction(name), "the last logs")
        for name, value in logs.items()
        if name not in SIDE_FIGURES
    ]


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
    return [_read_run(path, name) for path, name in zip(directories, names_of(directories), strict=True)]


def names_of(directories: Sequence[Path]) -> list[str]:
    """Returns a name for each run: that of its directory, or, where two are called the same, the whole path."""
    names = [directory.resolve().name for directory in directories]
    return names if len(set(names)) == len(names) else [str(directory) for directory in directories]


def read_record(directory: Path) -> Mapping[str, Any]:
    """Returns the record; a run that is recorded as running while no process holds its directory was killed.

    Raises:
      UsageError: There is none, or it is damaged.
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


def _read_run(directory: Path, name: str) -> Run:
    known = read_record(directory) if (directory / "run.json").is_file() else None
    splits = read_splits(directory / "reports")
    curves = read_curves(directory / "history.csv", known)
    if known is None and not splits and not curves:
        raise UsageError("contains neither run.json nor an evaluation", key="RUN", received=str(directory))
    run = Run(name, known, curves, splits, read_config(directory), read_export(directory), read_notes(directory))
    if not curves and not splits and not run.figures():
        raise UsageError("has no logged step and no evaluation yet", key="RUN", received=str(directory))
    return run
