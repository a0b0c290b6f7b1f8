"""`everstep runs list`."""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from everstep.cli import options
from everstep.cli.output import aligned, json_text, number
from everstep.cli.run_order import Order
from everstep.cli.run_words import main_metrics, progress, span, word
from everstep.cli.stored_runs import StoredRun, stored_runs
from everstep.errors import UsageError
from everstep.remote.urls import is_url
from everstep.submit.overview import Overview, overview

_HEADER = ["DIRECTORY", "EXPERIMENT", "BACKEND", "STATUS", "PROGRESS", "LEFT", "ATTEMPTS", "SEEN", "METRICS"]

Root = Annotated[
    str | None, typer.Argument(metavar="ROOT", help="Where to look, a directory or a URL; runs by default.")
]
Sort = Annotated[
    str | None,
    typer.Option(
        metavar="NAME", help="A metric, step, age or experiment to sort by; -NAME for the highest first: -accuracy."
    ),
]
Descending = Annotated[bool, typer.Option("--descending", help="With --sort, the highest first.")]


def list_runs(root: Root = None, sort: Sort = None, descending: Descending = False, json: options.Json = False) -> None:
    """List the runs below a directory: how they stand, how far they are, and when they were last heard of."""
    order = Order.of(sort, descending)
    found = order.apply(_overview(root))
    if json:
        print(json_text([one.as_dict() for one in found]))
    elif found:
        print(aligned([_header(order), *(_row(one, order) for one in found)]))
    else:
        print(f"no runs in {root or 'runs'!r}; everstep train mnist/local makes one")


def _overview(root: str | None) -> Sequence[Overview]:
    if root is not None and is_url(root):
        return stored_runs(root)
    if root is not None and not Path(root).is_dir():
        raise UsageError(f"there is no directory {root!r} to look for runs in")
    return overview(Path(root or "runs"))


def _header(order: Order) -> list[str]:
    return [*_HEADER[:-1], *([order.name] if order.is_metric else []), _HEADER[-1]]


def _row(run: Overview, order: Order) -> list[str]:
    record = run.record or {"experiment": None, "backend": None, "attempts": [], "metrics": {}}
    others = [(name, value) for name, value in main_metrics(record["metrics"]) if name != order.name]
    return [
        run.url if isinstance(run, StoredRun) else str(run.directory),
        word(record["experiment"]),
        word(record["backend"]),
        run.state,
        progress(run),
        span(run.seconds_left),
        str(len(record["attempts"])),
        span(run.age),
        *([number(order.shown(run))] if order.is_metric else []),
        " ".join(f"{name}={number(value)}" for name, value in others),
    ]
