"""Several runs side by side: what differs in configuration, environment and results, and a plot of their curves."""

import dataclasses
import importlib
import importlib.util
import io
import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from everstep.errors import UsageError, missing_extra
from everstep.report import run_data
from everstep.report.config_differences import differences
from everstep.report.notebook_views import comparison_html
from everstep.report.numbers import finite
from everstep.report.run_data import headline, names_of, read_points, read_record
from everstep.report.split_data import read_pages
from everstep.run import FinalWeights, changed_files, command_line, goodput, listed_files, read_final_weights
from everstep.tracking import SIDE_FIGURES, direction

_MOST_OF_ONE = 16  # characters of a value that stands in a line with others

Points = dict[tuple[str, str], list[tuple[int, float]]]
"""The points of each curve, by the metric and its kind."""


@dataclasses.dataclass(frozen=True)
class Member:
    """One of the runs.

    Attributes:
      name: The name shown for it.
      directory: Its directory on this machine.
      record: The content of its `run.json`.
      points: Its learning curves.
      config: The text of its configuration.
      final: The weights that it ended with, where they are not those of its last step.
    """

    name: str
    directory: Path
    record: Mapping[str, Any]
    points: Points
    config: str
    final: FinalWeights | None = None

    @property
    def steps_per_epoch(self) -> int | None:
        """Steps of an epoch; None of a run that does not count epochs."""
        return self.record.get("steps_per_epoch")

    def place(self, step: int) -> str:
        """Returns a step as the run counts: `epoch 4` where an epoch ends, else its number."""
        length = self.steps_per_epoch
        return f"epoch {step // length}" if length and step % length == 0 else str(step)


@dataclasses.dataclass(frozen=True)
class ComparedRow:
    """One figure of every run.

    Attributes:
      key: The name of the figure.
      values: One value for each run; None if it is unknown.
      steps: The step of each value, if values belong to steps.
      better: Whether `higher` or `lower` values are better; None if it is unknown.
    """

    key: str
    values: list[Any]
    steps: list[int | None] | None = None
    better: str | None = None

    @property
    def best(self) -> list[int]:
        """The positions of the best runs; [] if all are the same."""
        known = [value for value in map(finite, self.values) if value is not None]
        if self.better is None or len(set(known)) < 2:
            return []
        top = max(known) if self.better == "higher" else min(known)
        return [place for place, value in enumerate(self.values) if finite(value) == top]

    def as_dict(self) -> dict[str, Any]:
        """Returns the row for JSON; `steps` only if values belong to steps."""
        found = {"key": self.key, "values": self.values}
        found |= {"steps": self.steps} if self.steps is not None else {}
        return found | ({"better": self.better, "best": self.best} if self.better else {})


@dataclasses.dataclass(frozen=True, repr=False)
class SideBySide:
    """The comparison.

    Attributes:
      members: The runs.
      sections: The rows of each section, in the order of display.
    """

    members: list[Member]
    sections: dict[str, list[ComparedRow]]

    def as_dict(self) -> dict[str, Any]:
        """Returns the comparison for JSON."""
        runs = [{"name": one.name, "directory": str(one.directory), "id": one.record["id"]} for one in self.members]
        return {"runs": runs} | {name: [row.as_dict() for row in rows] for name, rows in self.sections.items()}

    @property
    def shown_sections(self) -> dict[str, list[ComparedRow]]:
        """The sections for people: what was changed first; code, environment and data in one line each."""
        folded = {"surroundings": _folded(self.sections["surroundings"], self.members)}
        course = {"course": [row for row in self.sections["course"] if len(set(row.values)) > 1]}
        return self.sections | folded | course

    def __repr__(self) -> str:
        return f"<comparison of {', '.join(member.name for member in self.members)}>"

    def _repr_html_(self) -> str:
        return comparison_html(self)


def side_by_side(directories: Sequence[Path]) -> SideBySide:
    """Compares runs; of configuration, code, machine and data, only differences are included.

    Raises:
      UsageError: There are fewer than two runs, one is named twice or is not a run, or its record is damaged.
    """
    if len(directories) < 2:
        raise UsageError("a comparison needs two runs or more", key="RUNS", received=len(directories))
    for place, directory in enumerate(directories):
        if directory.resolve() in [other.resolve() for other in directories[:place]]:
            raise UsageError("is named twice", key="RUNS", received=str(directory), remedy="name another run")
    members = [_read(path, name) for path, name in zip(directories, names_of(directories), strict=True)]
    sections = {
        "state": _state(members),
        "configuration": _configuration(members),
        "metrics": _metric_rows(members),
        "evaluations": _evaluations(members),
        "course": _course(members),
        "surroundings": _surroundings(members),
    }
    return SideBySide(members, {name: rows for name, rows in sections.items() if rows or name != "evaluations"})


def _read(directory: Path, name: str) -> Member:
    record = read_record(directory)
    points, config = read_points(directory / "history.csv", record), run_data.read_config(directory)
    return Member(name, directory, record, points, config, read_final_weights(record, directory))


def _each(members: Sequence[Member], key: str, find: Callable[[Member], Any], better: str | None = None) -> ComparedRow:
    return ComparedRow(key, [find(member) for member in members], better=better)


def _state(members: Sequence[Member]) -> list[ComparedRow]:
    names = ("experiment", "backend", "status", "step")
    return [_each(members, name, lambda member, name=name: member.record[name]) for name in names]  # type: ignore[misc]


def _configuration(members: Sequence[Member]) -> list[ComparedRow]:
    lines = [command_line(member.record) or None for member in members]
    typed = [ComparedRow("command", lines)] if len(set(lines)) > 1 else []
    return typed + [
        ComparedRow(found["key"], found["values"]) for found in differences([one.config for one in members])
    ]


def _surroundings(members: Sequence[Member]) -> list[ComparedRow]:
    """Returns the differences in code, machine, packages and data."""
    flat = [dict(_facts(member.record)) for member in members]
    keys = list(dict.fromkeys(key for facts in flat for key in facts))
    rows = [ComparedRow(key, [facts.get(key) for facts in flat]) for key in keys]
    return [row for row in rows if len(set(row.values)) > 1]


def _folded(rows: Sequence[ComparedRow], members: Sequence[Member]) -> list[ComparedRow]:
    """Returns one row for each part of the surroundings; code counts only if files that were imported differ."""
    parts: dict[str, list[ComparedRow]] = {}
    for row in rows:
        parts.setdefault(row.key.partition(".")[0], []).append(row)
    if "code" in parts:
        codes = [member.record["code"] for member in members]
        changed = [changed_files(codes[0], code) for code in codes[1:]]
        if None not in changed and not any(changed):
            del parts["code"]
        else:
            names = sorted({name for names in changed for name in names or ()})
            of = f" ({listed_files(names)})" if names else ""
            parts["code"] = [ComparedRow(f"code{of}", [run_data.code_name(code) or None for code in codes])]
    return [each[0] if len(each) == 1 else _in_one(name, each) for name, each in parts.items()]


def _in_one(name: str, rows: Sequence[ComparedRow]) -> ComparedRow:
    """Returns one row of several that tell one thing: `jax 0.7.1, numpy 2.3.4`, or digests in short."""
    labels = [re.sub(r"^\w+\.((packages|settings)\.)?|\.(sha256|sampled)$", "", row.key) for row in rows]
    cells = []
    for place in range(len(rows[0].values)):
        known = [(label, row.values[place]) for label, row in zip(labels, rows, strict=True)]
        cells.append(", ".join(f"{label} {_short(value)}" for label, value in known if value is not None) or None)
    return ComparedRow(name, cells)


def _short(value: Any) -> str:
    text = str(value)
    if re.fullmatch(r"[0-9a-f]{40,}", text):
        return text[:8]
    return text if len(text) <= _MOST_OF_ONE else f"{text[: _MOST_OF_ONE - 1]}…"


def _facts(record: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    for part in ("mode", "code", "environment", "data"):
        yield from _leaves(record[part], part)
    for number, one in enumerate(record["initial_weights"] if isinstance(record["initial_weights"], list) else ()):
        yield from _leaves({key: one.get(key) for key in ("path", "sha256")}, f"initial_weights.{number}")


def _leaves(value: Any, path: str) -> Iterator[tuple[str, str]]:
    if isinstance(value, Mapping):
        for key, item in value.items():
            yield from _leaves(item, f"{path}.{key}")
    elif value is not None:
        yield path, str(value)


def _metric_rows(members: Sequence[Member]) -> list[ComparedRow]:
    """Returns the last value of every metric, and its best if it is known which values are good.

    Where a run ended with the weights of an earlier step, their values come first.
    """
    curves = [_with_last_logs(member) for member in members]
    keys = telling(key for points in curves for key in points)
    rows = []
    for name, kind in keys:
        of_metric = [one.get((name, kind)) for one in curves]
        rows += [*_of_final_weights(name, kind, of_metric, members), *_of_metric(name, kind, of_metric)]
    return rows


def _of_final_weights(
    name: str, kind: str, curves: Sequence[list[tuple[int, float]] | None], members: Sequence[Member]
) -> Iterator[ComparedRow]:
    """Yields the values of the weights that runs ended with, if one of them has not the last ones."""
    ends = [member.final for member in members if member.final is not None]
    if not ends:
        return
    found = []
    for member, points in zip(members, curves, strict=True):
        step = None if member.final is None else member.final.step
        found.append(next((p for p in reversed(points or []) if step is None or p[0] == step), None))
    word = "exported" if any(end.is_exported for end in ends) else "restored"
    yield _row(f"{kind} {name}, {word}", found, direction(name))


def telling(keys: Iterable[tuple[str, str]]) -> list[tuple[str, str]]:
    """Returns the curves that measure quality, validation first, without `best_` versions of other curves."""
    found = [key for key in dict.fromkeys(keys) if key[0] not in SIDE_FIGURES]
    names = {name for name, _ in found}
    own = [key for key in found if not (key[0].startswith("best_") and key[0].removeprefix("best_") in names)]
    return sorted(own, key=lambda key: key[1] != "validation")


def _of_metric(name: str, kind: str, curves: Sequence[list[tuple[int, float]] | None]) -> Iterator[ComparedRow]:
    better = direction(name)
    yield _row(f"{kind} {name}, last", [points[-1] if points else None for points in curves], better)
    if better is not None:
        yield _row(f"{kind} {name}, best", [_best(points or [], better) for points in curves], better)


def _row(key: str, points: Sequence[tuple[int, float] | None], better: str | None) -> ComparedRow:
    return ComparedRow(key, [p[1] if p else None for p in points], [p[0] if p else None for p in points], better)


def _best(points: Sequence[tuple[int, float]], better: str) -> tuple[int, float] | None:
    """Returns the best point, the first of equal ones; NaNs are ignored."""
    sign = -1 if better == "higher" else 1
    known = [point for point in points if not math.isnan(point[1])]
    return min(known, key=lambda point: sign * point[1], default=None)


def _evaluations(members: Sequence[Member]) -> list[ComparedRow]:
    """Returns the figures of evaluations sample by sample, for each split."""
    pages = [[page for _, page in read_pages(member.directory / "reports")] for member in members]
    figures = [{(one.split, one.name): one for one in headline(None, each)} for each in pages]
    known = {key: figure for each in reversed(figures) for key, figure in each.items()}
    return [
        ComparedRow(
            f"{split} {name}", [each[split, name].value if (split, name) in each else None for each in figures], None, b
        )
        for (split, name), b in ((key, figure.better) for key, figure in known.items())
    ]


def _with_last_logs(member: Member) -> Points:
    """Returns the curves of a run; a metric without one, as without a history, has the last value of the record."""
    logged = member.record["metrics"]
    prefixes = {"train": "training_", "validation": "validation_"}
    names = {
        (name.removeprefix(prefixes.get(kind, "")), kind): value
        for kind, logs in logged.items()
        for name, value in logs.items()
    }
    values = {key: float("nan") if (known := finite(value)) is None else known for key, value in names.items()}
    return {key: [(int(member.record["step"]), value)] for key, value in values.items()} | member.points


def _course(members: Sequence[Member]) -> list[ComparedRow]:
    kept = [goodput(member.record) if member.record["attempts"] else None for member in members]
    rows = [
        ComparedRow("seconds", [one and round(one.seconds, 1) for one in kept]),
        ComparedRow("attempts", [one and one.attempts for one in kept]),
        ComparedRow("goodput", [one and round(one.ratio, 4) for one in kept], better="higher"),
    ]
    names = {"samples_per_second": "higher", "steps_per_second": "higher", "utilisation": "higher"}
    names |= dict.fromkeys(("parameters", "flops_per_train_step", "device"), "")
    rows += [_each(members, name, lambda m, n=name: m.record["cost"].get(n), b or None) for name, b in names.items()]  # type: ignore[misc]
    return [row for row in rows if any(value is not None for value in row.values)]


FORMATS = (".png", ".svg", ".pdf")
MOST_PANELS = 8
_COLOURS = ("#2f6fb5", "#d9622b", "#3a9a5b", "#8a5cc2", "#c23b6b", "#6b7280", "#b59a1a", "#2aa3a3")
_GREY = "#6b7280"
_LOOKS: dict[str, dict[str, Any]] = {
    "train": {"linestyle": "--", "alpha": 0.55, "linewidth": 1.1},
    "validation": {"linewidth": 1.8},
}


def can_draw() -> bool:
    """Returns whether matplotlib is installed."""
    return importlib.util.find_spec("matplotlib") is not None


def draw(members: Sequence[Member], suffix: str = ".png") -> bytes:
    """Returns a plot of the curves: validation in solid lines, training pale and dashed.

    They are over epochs, or over steps where one of the runs does not count epochs.

    It does not use matplotlib's global state: no display is needed, and no figure stays open.

    Args:
      members: The runs.
      suffix: The file format: `.png`, `.svg` or `.pdf`.

    Raises:
      UsageError: matplotlib is not installed, or no run has a curve.
    """
    if not can_draw():
        raise missing_extra("matplotlib", "plot", "a picture of curves")
    names = _metrics_to_draw(members)
    if not names:
        raise UsageError("none of the runs has a history to draw", remedy="train them first")
    columns = min(2, len(names))
    rows = math.ceil(len(names) / columns)
    figure_class = importlib.import_module("matplotlib.figure").Figure
    figure = figure_class(figsize=(5.2 * columns, 3.1 * rows + 0.5), layout="constrained")
    panels = list(figure.subplots(rows, columns, squeeze=False).flat)
    for axes, name in zip(panels, names, strict=False):
        _panel(axes, name, members)
    for axes in panels[len(names) :]:
        axes.set_axis_off()
    _legend(figure, members)
    held = io.BytesIO()
    figure.savefig(held, format=suffix.removeprefix("."), dpi=130, metadata=_undated(suffix))
    return held.getvalue()


def _metrics_to_draw(members: Sequence[Member]) -> list[str]:
    """Returns the names of the metrics to draw: the loss, then metrics with validation curves, then the others."""
    keys = telling(key for member in members for key in member.points)
    return sorted(dict.fromkeys(name for name, _ in keys), key=lambda name: name != "loss")[:MOST_PANELS]


def _panel(axes: Any, name: str, members: Sequence[Member]) -> None:
    in_epochs = all(member.steps_per_epoch for member in members)
    for number, member in enumerate(members):
        colour = _COLOURS[number % len(_COLOURS)]
        for kind, look in _LOOKS.items():
            if points := member.points.get((name, kind)):
                marker = "o" if len(points) < 2 else None  # a line needs two points
                length = member.steps_per_epoch if in_epochs else None
                steps, values = zip(*points, strict=True)
                places = [step / length for step in steps] if length else steps
                axes.plot(places, values, color=colour, marker=marker, **look)
    axes.set_title(_literal(name), loc="left", fontsize=10, fontweight="bold")
    axes.set_xlabel("epoch" if in_epochs else "step", fontsize=8, color=_GREY)
    axes.tick_params(labelsize=8, colors=_GREY)
    axes.grid(True, color="#e5e7eb", linewidth=0.8)
    axes.spines[["top", "right"]].set_visible(False)
    axes.spines[["left", "bottom"]].set_color("#d1d5db")


def _legend(figure: Any, members: Sequence[Member]) -> None:
    line = importlib.import_module("matplotlib.lines").Line2D
    colours = [line([], [], color=_COLOURS[n % len(_COLOURS)], linewidth=2) for n, _ in enumerate(members)]
    kinds = [line([], [], color=_GREY, linewidth=1.8), line([], [], color=_GREY, linestyle="--", linewidth=1.1)]
    labels = [*(_literal(member.name) for member in members), "validation", "training"]
    figure.legend([*colours, *kinds], labels, loc="outside lower center", ncols=min(len(labels), 6), frameon=False)


def _literal(text: str) -> str:
    """Returns a name escaped for matplotlib, which would read `$` as a formula."""
    return text.replace("$", r"\$")


def _undated(suffix: str) -> dict[str, None]:
    """Returns metadata without a date, so that the same runs give the same bytes."""
    return {".svg": {"Date": None}, ".pdf": {"CreationDate": None}}.get(suffix, {})
