"""`everstep runs`."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from everstep.cli import options
from everstep.cli.commands import new_app
from everstep.cli.output import aligned, json_text, number
from everstep.cli.runs_watch import watch
from everstep.cli.stored_runs import StoredRun, stored_run, stored_runs
from everstep.errors import TrainingError, UsageError
from everstep.remote.urls import is_url
from everstep.run.goodput import goodput
from everstep.run.record import read
from everstep.run.record_shape import damage
from everstep.submit.overview import Overview, overview
from everstep.submit.submissions import newest
from everstep.tracking.metric_names import SIDE_FIGURES
from everstep.tracking.sync import sync as send_waiting

_HEADER = ("DIRECTORY", "EXPERIMENT", "BACKEND", "STATUS", "PROGRESS", "LEFT", "ATTEMPTS", "SEEN", "METRICS")
_NUM_METRICS = 3
_SPANS = ((172800, 86400, "d"), (7200, 3600, "h"), (120, 60, "min"), (0, 1, "s"))  # from when on, which unit

Root = Annotated[
    str | None, typer.Argument(metavar="ROOT", help="Where to look, a directory or a URL; runs by default.")
]
Watched = Annotated[str, typer.Argument(metavar="RUN|ROOT", help="A run directory, a directory of runs, or a URL.")]
Once = Annotated[bool, typer.Option("--once", help="Look once, and end.")]
Directory = Annotated[str, typer.Argument(metavar="DIR", help="A run directory, or its URL.")]


class RunsGroup(TyperGroup):
    """`runs ROOT` is short for `runs list ROOT`."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Puts in the command that was left out."""
        named = bool(args) and (args[0] in self.commands or args[0] in ctx.help_option_names)
        return super().parse_args(ctx, args if named else ["list", *args])


app = new_app(
    cls=RunsGroup,
    subcommand_metavar="[ROOT] | show DIR | watch RUN | sync DIR",
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog="Example: everstep runs show runs/mnist-local-5f2c7a90b1 --json",
)


@app.callback()
def runs() -> None:
    """List runs, or show one.

    Without a command it lists the runs below ROOT, by default the directory runs.
    """


@app.command("list", epilog="Example: everstep runs experiments/2024")
def list_runs(
    root: Root = None,
    json: options.Json = False,
) -> None:
    """List the runs below a directory: how they stand, how far they are, and when they were last heard of."""
    found = _overview(root)
    if json:
        print(json_text([one.as_dict() for one in found]))
    elif found:
        print(aligned([_HEADER, *map(_row, found)]))
    else:
        print(f"no runs in {root or 'runs'!r}; everstep train mnist/local makes one")


@app.command(epilog="Example: everstep runs show runs/mnist-local-5f2c7a90b1")
def show(
    directory: Directory,
    json: options.Json = False,
) -> None:
    """Show one run; with --json, its run.json as it is."""
    if not json and (waiting := _waiting(directory)) is not None:
        print(aligned([("status", waiting.state), *_submitted(waiting)]))
        return
    run = stored_run(directory) if is_url(directory) else _local_run(directory)
    if json:
        print((run.directory / "run.json").read_text("utf-8"), end="")
    else:
        print(_summary(run))


@app.command("watch", epilog="Example: everstep runs watch runs/mnist-local-5f2c7a90b1")
def watch_runs(place: Watched = "runs", once: Once = False) -> None:
    """Watch a run, or all below a directory, until they end.

    On a terminal it is drawn in place, each second; elsewhere a line is printed whenever something is logged or saved,
    or has ended. Exit code 0: all finished; 1: one failed, was interrupted or killed.
    """
    try:
        code = watch(place, once)
    except KeyboardInterrupt:
        code = 130
    raise typer.Exit(code)


@app.command(epilog="Example: everstep runs sync runs/mnist-local-5f2c7a90b1")
def sync(directory: Directory) -> None:
    """Send MLflow what it has not got yet of a run's numbers."""
    if is_url(directory):
        raise UsageError(f"DIR: received {directory!r}; what waits is on the machine that trained: name its directory")
    read(directory)
    result = send_waiting(directory)
    print(f"{result.sent} points sent to {result.server}, {result.waiting} wait")
    if result.refused:
        print(f"{result.refused} entries refused for good: {Path(directory, 'spool', 'mlflow.refused.jsonl')} says why")
    if result.problem:
        raise TrainingError(f"{result.server} takes no points: {result.problem}")


def _waiting(directory: str) -> Overview | None:
    """Returns a run that was submitted and has no record yet."""
    path = Path(directory)
    submitted = None if is_url(directory) or (path / "run.json").exists() else newest(path)
    return None if submitted is None else Overview(path, None, submitted)


def _overview(root: str | None) -> Sequence[Overview]:
    if root is not None and is_url(root):
        return stored_runs(root)
    if root is not None and not Path(root).is_dir():
        raise UsageError(f"there is no directory {root!r} to look for runs in")
    return overview(Path(root or "runs"))


def _local_run(directory: str) -> Overview:
    return Overview(Path(directory), read(directory), newest(Path(directory)))


def _submitted(run: Overview) -> list[tuple[str, str]]:
    return [("submitted", f"{run.submission.job}, {run.submission.folder}")] if run.submission else []


def _row(run: Overview) -> list[str]:
    record = run.record or {"experiment": None, "backend": None, "attempts": [], "metrics": {}}
    metrics = " ".join(f"{name}={number(value)}" for name, value in _main_metrics(record["metrics"]))
    return [
        run.url if isinstance(run, StoredRun) else str(run.directory),
        _word(record["experiment"]),
        _word(record["backend"]),
        run.state,
        _progress(run),
        _span(run.seconds_left),
        str(len(record["attempts"])),
        _span(run.age),
        metrics,
    ]


def _progress(run: Overview) -> str:
    """Returns `1200/4000 30 %`; where nobody knows how many there are in all, the steps done."""
    if run.record is None:
        return "-"
    return f"{run.step}/{run.train_steps} {100 * run.step // run.train_steps} %" if run.train_steps else str(run.step)


def _span(seconds: float | None) -> str:
    """Returns a time in one number: 40 s, 12 min, 3 h, 2 d."""
    if seconds is None:
        return "-"
    unit, name = next((unit, name) for from_, unit, name in _SPANS if seconds >= from_)
    return f"{seconds / unit:.0f} {name}"


def _main_metrics(metrics: Mapping[str, Mapping[str, Any]]) -> list[tuple[str, Any]]:
    """Returns the first few figures of the last evaluation; where there was none, of training."""
    logs = metrics.get("validation") or metrics.get("train") or {}
    return [(name, value) for name, value in logs.items() if name not in SIDE_FIGURES][:_NUM_METRICS]


def _summary(run: Overview) -> str:
    record = run.record or {}
    if (wrong := damage(record)) is not None:
        path = str(run.directory / "run.json")
        raise UsageError(f"{path!r} is damaged: {wrong} is missing, or has no usable value; --json shows it as it is")
    plain = ("id", "experiment", "backend", "status", "step", "epoch", "digest", "weights_digest")
    rows = [(name, _word(record[name])) for name in plain]
    rows[3:5] = [("status", run.state), ("progress", _progress(run))]
    rows += _submitted(run)
    rows += [(name, _word(value)) for name, value in record["code"].items() if value is not None]
    for kind, logs in record["metrics"].items():
        rows += [(f"{kind} {name}", number(value)) for name, value in logs.items()]
    rows += [("goodput", str(goodput(record)))] if record["attempts"] else []
    rows += [(f"attempt {count}", _attempt(one)) for count, one in enumerate(record["attempts"], start=1)]
    return aligned(rows)


def _attempt(attempt: Mapping[str, Any]) -> str:
    ended = attempt["ended"] or "…"
    return (
        f"steps {attempt['from_step']} to {attempt['to_step']}, {attempt['started']} to {ended}: "
        f"{attempt['reason'] or 'under way, or killed'}"
    )


def _word(value: Any) -> str:
    return "-" if value is None else str(value)
