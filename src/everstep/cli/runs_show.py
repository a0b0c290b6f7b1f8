"""`everstep runs show` and `everstep runs sync`."""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from everstep.cli import options
from everstep.cli.output import aligned, number
from everstep.cli.run_words import progress, word
from everstep.cli.stored_runs import stored_run
from everstep.errors import TrainingError, UsageError
from everstep.remote.urls import is_url
from everstep.run.goodput import goodput
from everstep.run.record import read
from everstep.run.record_shape import damage
from everstep.submit.overview import Overview
from everstep.submit.submissions import newest
from everstep.tracking.sync import sync_all as send_waiting

Directory = Annotated[str, typer.Argument(metavar="DIR", help="A run directory, or its URL.")]


def show(directory: Directory, json: options.Json = False) -> None:
    """Show one run; with --json, its run.json as it is."""
    if not json and (waiting := _waiting(directory)) is not None:
        print(aligned([("status", waiting.state), *_submitted(waiting)]))
        return
    run = stored_run(directory) if is_url(directory) else _local_run(directory)
    if json:
        print((run.directory / "run.json").read_text("utf-8"), end="")
    else:
        print(_summary(run))


def sync(directory: Directory) -> None:
    """Send MLflow and W&B what they have not got yet of a run's numbers."""
    if is_url(directory):
        raise UsageError(f"DIR: received {directory!r}; what waits is on the machine that trained: name its directory")
    read(directory)
    results = send_waiting(directory)
    for result in results:
        print(f"{result.sent} points sent to {result.server}, {result.waiting} wait")
        if result.refused:
            path = Path(directory, "spool", "mlflow.refused.jsonl")
            print(f"{result.refused} entries refused for good: {path} says why")
    if failed := [f"{result.server} takes no points: {result.problem}" for result in results if result.problem]:
        raise TrainingError("; ".join(failed))


def _waiting(directory: str) -> Overview | None:
    """Returns a run that was submitted and has no record yet."""
    path = Path(directory)
    submitted = None if is_url(directory) or (path / "run.json").exists() else newest(path)
    return None if submitted is None else Overview(path, None, submitted)


def _local_run(directory: str) -> Overview:
    return Overview(Path(directory), read(directory), newest(Path(directory)))


def _submitted(run: Overview) -> list[tuple[str, str]]:
    return [("submitted", f"{run.submission.job}, {run.submission.folder}")] if run.submission else []


def _summary(run: Overview) -> str:
    record = run.record or {}
    if (wrong := damage(record)) is not None:
        path = str(run.directory / "run.json")
        raise UsageError(f"{path!r} is damaged: {wrong} is missing, or has no usable value; --json shows it as it is")
    plain = ("id", "experiment", "backend", "status", "step", "epoch", "digest", "weights_digest")
    rows = [(name, word(record[name])) for name in plain]
    rows[3:5] = [("status", run.state), ("progress", progress(run))]
    rows += _submitted(run)
    rows += [(name, word(value)) for name, value in record["code"].items() if value is not None]
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
