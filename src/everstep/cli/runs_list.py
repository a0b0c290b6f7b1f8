"""`everstep runs list`: the runs below a directory or a URL, sorted."""

import dataclasses
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from everstep.checkpoint.remote import is_url
from everstep.cli import completion, options
from everstep.cli.output import aligned, number
from everstep.cli.remote_runs import RemoteRun, remote_runs
from everstep.cli.runs_cells import duration, main_metrics, progress, text_or_dash
from everstep.errors import UsageError, nearest
from everstep.run import Overview, RunGroup, find_run_groups, named_run, overview, runs_like
from everstep.storage import json_text
from everstep.tracking import find_logged

_COLUMNS = ["DIRECTORY", "EXPERIMENT", "BACKEND", "STATUS", "PROGRESS", "LEFT", "ATTEMPTS", "SEEN", "METRICS"]
_SORT_KEYS: dict[str, Callable[[Overview], Any]] = {
    "step": lambda run: run.step,
    "age": lambda run: run.age,
    "experiment": lambda run: _name(run.record or {}),
}

Root = Annotated[
    str | None,
    typer.Argument(
        metavar="ROOT",
        help="Where to look, a directory or a URL; runs by default.",
        autocompletion=completion.runs,
    ),
]
Sort = Annotated[
    str | None,
    typer.Option(
        metavar="NAME", help="A metric, step, age or experiment to sort by; -NAME for the highest first: -accuracy."
    ),
]
Descending = Annotated[bool, typer.Option("--descending", help="With --sort, the highest first.")]


def list_runs(root: Root = None, sort: Sort = None, descending: Descending = False, json: options.Json = False) -> None:
    """List the runs below a directory: status, progress, and when each was last seen."""
    order = Order.of(sort, descending)
    place = Path(named_run(root) if root is not None else "runs")
    if root is not None and is_url(root):
        found: Sequence[Overview] = remote_runs(root)
    elif root is not None and not place.is_dir():
        raise UsageError("is not a directory", key="ROOT", received=root, remedy=runs_like(root))
    else:
        found = overview(place)
    found = order.apply(found)
    sweeps = [] if root is not None and is_url(root) else find_run_groups(place)
    if json:
        print(json_text([{**one.as_dict(), "sweep": _sweep_of(one, sweeps)} for one in found]))
    elif found:
        header = [*_COLUMNS[:-1], *([order.name] if order.is_metric else []), _COLUMNS[-1]]
        print(aligned([header, *(_list_row(one, order) for one in found)]))
        for sweep in sweeps:
            print(sweep.line())
    else:
        makes = "everstep train mnist/quick makes one, and so does a script with everstep.fit"
        elsewhere = "" if root else "; of runs elsewhere: everstep runs DIR"
        print(f"no runs in {root or 'runs'!r}: {makes}{elsewhere}")


def _sweep_of(run: Overview, sweeps: Iterable[RunGroup]) -> dict[str, Any] | None:
    """Returns the sweep and the number of a run that is a trial; None for any other."""
    for sweep in sweeps:
        if (number := sweep.places.get(run.directory.resolve())) is not None:
            return {"directory": str(sweep.directory), "trial": number}
    return None


@dataclasses.dataclass(frozen=True)
class Order:
    """How runs are sorted.

    Attributes:
      name: A metric of the last logs, `step`, `age` or `experiment`; empty to keep the order.
      descending: Whether the highest comes first.
    """

    name: str = ""
    descending: bool = False

    @classmethod
    def of(cls, sort: str | None, descending: bool) -> "Order":
        """Returns the order that the command line specifies.

        Raises:
          UsageError: It contradicts itself, or is empty.
        """
        if sort is None:
            if descending:
                raise UsageError("there is nothing to sort by", key="--descending", remedy="add --sort NAME")
            return cls()
        name = sort.removeprefix("-")
        if not name:
            raise UsageError("expected a metric, step, age or experiment", key="--sort", received=sort)
        if descending and name != sort:
            raise UsageError(f"--sort {sort} means the same", key="--descending", remedy="omit one of them")
        return cls(name, descending or name != sort)

    @property
    def is_metric(self) -> bool:
        """Whether it is by a number that gets a column of its own."""
        return bool(self.name) and self.name not in _SORT_KEYS

    def apply(self, runs: Sequence[Overview]) -> list[Overview]:
        """Returns the runs in order; those without the value come last, in either direction.

        Raises:
          UsageError: No run has it; names the nearest.
        """
        if not self.name or not runs:
            return list(runs)
        if self.is_metric and all(find_logged(self.name, run.shown_metrics) is None for run in runs):
            remedy = nearest(self.name, {*_metric_names(runs), *_SORT_KEYS})
            raise UsageError("no run has such a metric", key="--sort", received=self.name, remedy=remedy)
        rated = [(self._key(run), run) for run in runs]
        first = [(key, run) for key, run in rated if key is not None]
        last = [run for key, run in rated if key is None]
        return [run for _, run in sorted(first, key=lambda pair: pair[0], reverse=self.descending)] + last

    def shown(self, run: Overview) -> Any:
        """Returns the metric of a run, of the weights that it ended with; a dash for none."""
        metrics = run.shown_metrics
        found = find_logged(self.name, metrics)
        return "-" if found is None else metrics[found[0]][found[1]]

    def cell(self, run: Overview) -> str:
        """Returns the metric as a column has it: `0.0544 (epoch 2)` where it is not the last value."""
        text, final = number(self.shown(run)), run.final_weights
        return text if final is None or text == "-" else f"{text} ({final.place})"

    def key_in(self, run: Overview) -> str:
        """Returns the key of the metric in the logs of a run; empty if it has none."""
        return (find_logged(self.name, run.shown_metrics) or ("", ""))[1]

    def _key(self, run: Overview) -> Any:
        if not self.is_metric:
            return _SORT_KEYS[self.name](run)
        value = self.shown(run)
        is_number = isinstance(value, int | float) and math.isfinite(value)  # a record spells NaN as text
        return value if is_number else None


def _metric_names(runs: Iterable[Overview]) -> Iterable[str]:
    for run in runs:
        for kind in ("validation", "train"):
            yield from (run.record or {}).get("metrics", {}).get(kind, ())


def _name(record: Mapping[str, Any]) -> str | None:
    """Returns what a run is called: its experiment, or a name of its own."""
    return record.get("name") or record.get("experiment")


def _list_row(run: Overview, order: Order) -> list[str]:
    record = run.record or {"experiment": None, "backend": None, "attempts": [], "metrics": {}}
    return [
        run.url if isinstance(run, RemoteRun) else str(run.directory),
        text_or_dash(_name(record)),
        text_or_dash(record["backend"]),
        run.state,
        progress(run),
        duration(run.seconds_left),
        str(len(record["attempts"])),
        duration(run.age),
        *([order.cell(run)] if order.is_metric else []),
        main_metrics(run, without=order.key_in(run) if order.is_metric else ""),
    ]
