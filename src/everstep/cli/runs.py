"""`everstep runs`: list runs, show, watch, compare or remove them."""

import dataclasses
import math
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from everstep import storage
from everstep.checkpoint.remote.urls import is_url
from everstep.cli import options
from everstep.cli.commands import new_app
from everstep.cli.output import aligned, number
from everstep.cli.runs_watch import watch_runs
from everstep.cli.stored_runs import StoredRun, local_run, stored_run, stored_runs
from everstep.errors import Problem, TrainingError, UsageError, nearest
from everstep.launch.submit.overview import Overview, listable, overview
from everstep.launch.submit.submissions import newest
from everstep.launch.sweep.listing import ListedSweep, find_sweeps, read_sweep
from everstep.run import removal
from everstep.run.goodput import goodput
from everstep.run.record import damage, read
from everstep.storage import json_text
from everstep.tracking.metric_names import SIDE_FIGURES
from everstep.tracking.sync import sync_all as send_waiting


class RunsGroup(TyperGroup):
    """`runs ROOT` is short for `runs list ROOT`."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Inserts the command `list` if none is given."""
        named = bool(args) and (args[0] in self.commands or args[0] in ctx.help_option_names)
        return super().parse_args(ctx, args if named else ["list", *args])


app = new_app(
    cls=RunsGroup,
    subcommand_metavar="[ROOT] | show DIR | watch RUN | compare DIR DIR… | rm DIR… | sync DIR",
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog="Example: everstep runs show runs/mnist-local-5f2c7a90b1 --json",
)


@app.callback()
def runs() -> None:
    """List runs, show, compare or remove them.

    Without a command it lists the runs below ROOT, by default the directory runs.
    """


# List

_COLUMNS = ["DIRECTORY", "EXPERIMENT", "BACKEND", "STATUS", "PROGRESS", "LEFT", "ATTEMPTS", "SEEN", "METRICS"]
_SORT_KEYS: dict[str, Callable[[Overview], Any]] = {
    "step": lambda run: run.step,
    "age": lambda run: run.age,
    "experiment": lambda run: (run.record or {}).get("experiment"),
}
_KINDS = ("validation", "train")  # where a metric is looked up, in this order

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


@app.command("list", epilog="Example: everstep runs experiments/2024 --sort validation_loss")
def list_runs(root: Root = None, sort: Sort = None, descending: Descending = False, json: options.Json = False) -> None:
    """List the runs below a directory: status, progress, and when each was last seen."""
    order = Order.of(sort, descending)
    if root is not None and is_url(root):
        found: Sequence[Overview] = stored_runs(root)
    elif root is not None and not Path(root).is_dir():
        raise UsageError("is not a directory", key="ROOT", received=root)
    else:
        found = overview(Path(root or "runs"))
    found = order.apply(found)
    sweeps = [] if root is not None and is_url(root) else list(find_sweeps(Path(root or "runs")))
    if json:
        print(json_text([{**one.as_dict(), "sweep": _sweep_of(one, sweeps)} for one in found]))
    elif found:
        header = [*_COLUMNS[:-1], *([order.name] if order.is_metric else []), _COLUMNS[-1]]
        print(aligned([header, *(_list_row(one, order) for one in found)]))
        for sweep in sweeps:
            print(sweep.line())
    else:
        print(f"no runs in {root or 'runs'!r}; everstep train mnist/local makes one")


def _sweep_of(run: Overview, sweeps: Iterable[ListedSweep]) -> dict[str, Any] | None:
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
        known = set(_metric_names(runs))
        spellings = {f"{prefix}{name}" for name in known for prefix in ("", *(f"{kind}_" for kind in _KINDS))}
        if self.is_metric and self.name not in spellings:
            remedy = nearest(self.name, {*known, *_SORT_KEYS})
            raise UsageError("no run has such a metric", key="--sort", received=self.name, remedy=remedy)
        rated = [(self._key(run), run) for run in runs]
        first = [(key, run) for key, run in rated if key is not None]
        last = [run for key, run in rated if key is None]
        return [run for _, run in sorted(first, key=lambda pair: pair[0], reverse=self.descending)] + last

    def shown(self, run: Overview) -> Any:
        """Returns the metric of a run as its record has it; a dash for none."""
        metrics = (run.record or {}).get("metrics", {})
        for kind in _KINDS:
            for name in (self.name, self.name.removeprefix(f"{kind}_")):
                if name in metrics.get(kind, {}):
                    return metrics[kind][name]
        return "-"

    def _key(self, run: Overview) -> Any:
        if not self.is_metric:
            return _SORT_KEYS[self.name](run)
        value = self.shown(run)
        is_number = isinstance(value, int | float) and math.isfinite(value)  # a record spells NaN as text
        return value if is_number else None


def _metric_names(runs: Iterable[Overview]) -> Iterable[str]:
    for run in runs:
        for kind, logs in (run.record or {}).get("metrics", {}).items():
            yield from logs if kind in _KINDS else ()


def _list_row(run: Overview, order: Order) -> list[str]:
    record = run.record or {"experiment": None, "backend": None, "attempts": [], "metrics": {}}
    return [
        run.url if isinstance(run, StoredRun) else str(run.directory),
        _text(record["experiment"]),
        _text(record["backend"]),
        run.state,
        _progress(run),
        _duration(run.seconds_left),
        str(len(record["attempts"])),
        _duration(run.age),
        *([number(order.shown(run))] if order.is_metric else []),
        _main_metrics(record["metrics"], without=order.name),
    ]


def _progress(run: Overview) -> str:
    """Returns `1200/4000 30 %`; if the total is unknown, the steps done."""
    if run.record is None:
        return "-"
    return f"{run.step}/{run.train_steps} {100 * run.step // run.train_steps} %" if run.train_steps else str(run.step)


def _duration(seconds: float | None) -> str:
    """Returns a time as one number: 40 s, 12 min, 3 h, 2 d."""
    if seconds is None:
        return "-"
    for least, unit, name in ((172800, 86400, "d"), (7200, 3600, "h"), (120, 60, "min")):
        if seconds >= least:
            return f"{seconds / unit:.0f} {name}"
    return f"{seconds:.0f} s"


def _text(value: Any) -> str:
    return "-" if value is None else str(value)


def _main_metrics(metrics: Mapping[str, Mapping[str, Any]], without: str = "") -> str:
    """Returns the first three metrics of the last evaluation, or else of training."""
    logs = metrics.get("validation") or metrics.get("train") or {}
    main = [(name, value) for name, value in logs.items() if name not in SIDE_FIGURES][:3]
    return " ".join(f"{name}={number(value)}" for name, value in main if name != without)


# Show, sync and watch

Directory = Annotated[str, typer.Argument(metavar="DIR", help="A run directory, or its URL.")]


@app.command(epilog="Example: everstep runs show runs/mnist-local-5f2c7a90b1")
def show(directory: Directory, json: options.Json = False) -> None:
    """Show one run; with --json, print its run.json."""
    path = Path(directory)
    submission = None if is_url(directory) else newest(path)
    if not json and submission is not None and not (path / "run.json").exists():  # it has not started yet
        waiting = Overview(path, None, submission)
        print(aligned([("status", waiting.state), *_submission_rows(waiting)]))
        return
    run = stored_run(directory) if is_url(directory) else Overview(path, read(directory), submission)
    print((run.directory / "run.json").read_text("utf-8") if json else f"{_summary(run)}\n", end="")


def _submission_rows(run: Overview) -> list[tuple[str, str]]:
    return [("submitted", f"{run.submission.job}, {run.submission.folder}")] if run.submission else []


def _summary(run: Overview) -> str:
    record = run.record or {}
    if (wrong := damage(record)) is not None:
        raise UsageError(
            f"is damaged: {wrong} is missing, or has no usable value",
            key="run.json",
            received=str(run.directory / "run.json"),
            remedy="--json prints the file",
        )
    plain = ("id", "experiment", "backend", "status", "step", "epoch", "digest", "weights_digest")
    rows = [(name, _text(record[name])) for name in plain]
    rows[3:5] = [("status", run.state), ("progress", _progress(run))]
    rows += _submission_rows(run)
    rows += [(name, _text(value)) for name, value in record["code"].items() if value is not None]
    for kind, logs in record["metrics"].items():
        rows += [(f"{kind} {name}", number(value)) for name, value in logs.items()]
    rows += [("goodput", str(goodput(record)))] if record["attempts"] else []
    rows += [(f"attempt {count}", _attempt(one)) for count, one in enumerate(record["attempts"], start=1)]
    return aligned(rows)


def _attempt(attempt: Mapping[str, Any]) -> str:
    ended = attempt["ended"] or "…"
    return (
        f"steps {attempt['from_step']} to {attempt['to_step']}, {attempt['started']} to {ended}: "
        f"{attempt['reason'] or 'running, or killed'}"
    )


@app.command(epilog="Example: everstep runs sync runs/mnist-local-5f2c7a90b1")
def sync(directory: Directory) -> None:
    """Send MLflow and W&B the numbers of a run that they have not received yet."""
    if is_url(directory):
        raise UsageError(
            "unsent numbers are on the machine that trained", key="DIR", received=directory, remedy="name its directory"
        )
    read(directory)
    results = send_waiting(directory)
    for result in results:
        print(f"{result.sent} points sent to {result.server}, {result.waiting} wait")
        if result.refused:
            path = Path(directory, "spool", "mlflow.refused.jsonl")
            print(f"{result.refused} entries refused for good: {path} says why")
    if failed := [Problem(result.server, f"takes no points: {result.problem}") for result in results if result.problem]:
        raise TrainingError(failed)


app.command("watch", epilog="Example: everstep runs watch runs/mnist-local-5f2c7a90b1")(watch_runs)


# Compare

_MAX_CELL = 44
_BEST_TRIALS = 4  # of a sweep
_TITLES = {
    "configuration": "CONFIGURATION",
    "surroundings": "CODE, MACHINE AND DATA",
    "metrics": "METRICS",
    "evaluations": "EVALUATIONS",
    "course": "TIME AND SPEED",
}
_NO_ROWS = {"configuration": "no value differs", "surroundings": "nothing differs"}

Runs = Annotated[
    list[str], typer.Argument(metavar="DIR", help="Run directories, or URLs; a sweep stands for its best.")
]
Out = Annotated[
    str | None,
    typer.Option(
        "--out", metavar="FILE", help="The picture of the curves, .png, .svg or .pdf; reports/compare.png in the first."
    ),
]
Html = Annotated[bool, typer.Option("--html", help="Write the page of everstep report as well: sample by sample.")]


@app.command(epilog="Example: everstep runs compare runs/first runs/second --out curves.png")
def compare(runs: Runs, out: Out = None, html: Html = False, json: options.Json = False) -> None:
    """Compare runs: values that differ, code, machine and data, metrics, speed, and curves as a picture.

    A star marks the better value, where it is known which values are good. With --json a picture is drawn only if
    --out names it.
    """
    from everstep.evaluation import report
    from everstep.evaluation.report import side_by_side

    if out is not None:
        if Path(out).suffix not in side_by_side.FORMATS:
            expected = f"expected a file that ends in {', '.join(side_by_side.FORMATS)}"
            raise UsageError(expected, key="--out", received=out)
        if Path(out).is_dir():
            raise UsageError("is a directory", key="--out", received=out, remedy="name a file in it")
        if not side_by_side.can_draw():
            side_by_side.draw(())  # raises the error that names what is missing
    members = [one for run in runs for one in _members(run)]
    directories = [Path(local_run(run, checkpoints=False)) for run in members]
    found = side_by_side.side_by_side(directories)
    written = {}
    if out is not None or not json:
        path = Path(out) if out is not None else found.members[0].directory / "reports" / "compare.png"
        try:
            data = side_by_side.draw(found.members, path.suffix)
        except UsageError as error:
            if out is not None:
                raise
            print(f"no picture: {error}", file=sys.stderr)
        else:
            storage.prepare_directory(path.parent)
            storage.write_bytes(path, data)
            written["picture"] = str(path)
    if html:
        written["page"] = str(report.write(directories))
    print(json_text(found.as_dict() | written) if json else _comparison(found, written))


def _members(run: str) -> list[str]:
    """Returns the runs that a directory stands for: of a sweep, its best trials."""
    sweep = None if is_url(run) else read_sweep(Path(run))
    return [run] if sweep is None else [str(path) for path in sweep.best(_BEST_TRIALS)]


def _comparison(found: Any, written: dict[str, str]) -> str:
    empty = [""] * len(found.members)
    rows: list[list[str]] = [["", *(member.name for member in found.members)]]
    for name, lines in found.sections.items():
        rows += [["", *empty], [_TITLES[name], *empty]] if name in _TITLES else []
        rows += [[row.key, *_cells(row)] for row in lines] or [[_NO_ROWS.get(name, "nothing is known"), *empty]]
    return "\n".join([aligned(rows), *([""] if written else []), *written.values()])


def _cells(row: Any) -> list[str]:
    """Returns a row's values; `@STEP` after those of a certain step, a star after the best."""
    cells = []
    for place, value in enumerate(row.values):
        text = "-" if value is None else number(value).replace("\n", " ")
        text = text if len(text) <= _MAX_CELL else f"{text[: _MAX_CELL - 1]}…"
        step = row.steps[place] if row.steps else None
        known = value is not None
        cells.append(f"{text}{f' @{step}' if known and step is not None else ''}{' *' if place in row.best else ''}")
    return cells


# Remove

Directories = Annotated[list[str], typer.Argument(metavar="DIR", help="Run directories.")]
Yes = Annotated[bool, typer.Option("--yes", help="Do not prompt; needed without a terminal.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Only show what would be removed.")]
Force = Annotated[bool, typer.Option("--force", help="Remove a run although another one began with its weights.")]


@app.command("rm", epilog="Example: everstep runs rm runs/mnist-local-5f2c7a90b1 --dry-run")
def remove(directories: Directories, yes: Yes = False, dry_run: DryRun = False, force: Force = False) -> None:
    """Remove runs, after showing what is removed.

    Directories that are no runs, runs that train or wait in a queue, and runs whose weights another one beside them
    began with are refused. Links are removed, never followed; of a project's run the config file and your own files
    stay.
    """
    distinct = {Path(name).absolute(): name for name in directories}
    found = [_removable(name) for name in distinct.values()]
    if not force:
        _refuse_needed([run.directory for run in found])
    header = ("DIRECTORY", "STATUS", "PROGRESS", "FILES", "SIZE", "METRICS")
    print(aligned([header, *map(_removal_row, found)]))
    if dry_run or not _confirmed(yes, len(found)):
        print("nothing is removed")
        return
    tracked = any((run.directory / "spool").is_dir() for run in found)
    for run in found:
        removal.remove(run.directory)
        left = " (your own files in it stay)" if run.directory.exists() else ""
        print(f"removed {run.directory}{left}")
    if tracked:
        print("what trackers such as MLflow have of it stays there")


def _removable(name: str) -> Overview:
    """Returns a run that may be removed."""
    if is_url(name):
        raise UsageError("is at a URL", key="DIR", received=name, remedy="remove it with the store's own tools")
    path = Path(name)
    run = Overview(path, listable(removal.check(path)), newest(path))
    if run.submission is not None and run.submission.state in ("queued", "active"):
        raise UsageError(
            f"is {run.state}", key="DIR", received=name, remedy=f"end it first: {run.submission.stop_command}"
        )
    return run


def _refuse_needed(directories: Sequence[Path]) -> None:
    removed = {directory.resolve() for directory in directories}
    for directory in directories:
        if users := [user for user in removal.users_of(directory) if user.resolve() not in removed]:
            raise UsageError(
                f"{str(users[0])!r} began with its weights, and cannot be reproduced without it",
                key="DIR",
                received=str(directory),
                remedy="remove both, or add --force",
            )


def _removal_row(run: Overview) -> list[str]:
    files, size = removal.contents(run.directory)
    metrics = _main_metrics((run.record or {}).get("metrics", {}))
    return [str(run.directory), run.state, _progress(run), str(files), _size(size), metrics]


def _size(count: float) -> str:
    for unit in ("B", "KiB", "MiB", "GiB"):
        if count < 1024:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1024
    return f"{count:.1f} TiB"


def _confirmed(yes: bool, count: int) -> bool:
    if yes:
        return True
    if not sys.stdin.isatty():
        raise UsageError(
            "there is no terminal for a prompt", key="--yes", remedy="add it to remove what is listed, or use --dry-run"
        )
    what = "this run" if count == 1 else f"these {count} runs"
    try:
        return typer.confirm(f"Remove {what} for good?", default=False, err=True)
    except typer.Abort:  # the terminal was closed
        return False
