"""`everstep runs show`: one run."""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from everstep.checkpoint.remote import is_url
from everstep.cli import completion, options
from everstep.cli.output import aligned, number
from everstep.cli.remote_runs import remote_run
from everstep.cli.runs_cells import progress, text_or_dash
from everstep.engine import as_text
from everstep.errors import UsageError
from everstep.run import (
    CODE_FILES,
    FORKED_FROM,
    FinalWeights,
    Overview,
    command_line,
    damage,
    goodput,
    named_run,
    newest_job,
    read,
    tag_words,
)
from everstep.tracking import SIDE_FIGURES

Directory = Annotated[
    str, typer.Argument(metavar="DIR", help="A run directory, or its URL.", autocompletion=completion.runs)
]


def show(directory: Directory, json: options.Json = False) -> None:
    """Show one run; with --json, print its run.json."""
    path = Path(named_run(directory))
    submission = None if is_url(directory) else newest_job(path)
    if not json and submission is not None and not (path / "run.json").exists():  # it has not started yet
        waiting = Overview(path, None, submission)
        print(aligned([("status", waiting.state), *_submission_rows(waiting)]))
        return
    run = remote_run(directory) if is_url(directory) else Overview(path, read(path), submission)
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
    rows = [(name, text_or_dash(record[name])) for name in plain]
    rows[3:5] = [("status", run.state), ("progress", progress(run))]
    rows[2:2] = [*_label_rows(record), *_command_rows(record)]
    origin, stopped, final = record.get(FORKED_FROM), record.get("stopped_early"), run.final_weights
    rows += [("forked from", f"{origin['directory']} at step {origin['step']}")] if origin else []
    rows += [("stopped by", stopped["reason"])] if stopped else []
    rows += [("weights", f"of {final.mark}")] if final else []
    rows += _submission_rows(run)
    code = {name: value for name, value in record["code"].items() if name != CODE_FILES and value is not None}
    rows += [(name, text_or_dash(value)) for name, value in code.items()]
    rows += [("exactness", as_text(record["exactness"]))] if record.get("exactness") else []
    for kind, logs in record["metrics"].items():
        shown = run.shown_metrics[kind]
        rows += [(f"{kind} {name}", _value(name, value, shown, final)) for name, value in logs.items()]
    rows += [("goodput", str(goodput(record)))] if record["attempts"] else []
    rows += [(f"attempt {count}", _attempt(one)) for count, one in enumerate(record["attempts"], start=1)]
    return aligned(rows)


def _label_rows(record: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Returns what people have said about the run."""
    name = record.get("name") if record.get("name") != record["experiment"] else None
    words = ", ".join(tag_words(record.get("tags") or {}))
    found = {"name": name, "tags": words, "notes": " ".join((record.get("notes") or "").split())}
    return [(label, value) for label, value in found.items() if value]


def _command_rows(record: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Returns how the script that has started the run was called."""
    line = command_line(record)
    return [("command", line)] if line else []


def _value(name: str, last: Any, shown: Mapping[str, Any], final: FinalWeights | None) -> str:
    """Returns the value of a metric; of weights from an earlier step with the last one behind."""
    if final is None or name in SIDE_FIGURES or name not in shown:
        return number(last)
    return f"{number(shown[name])} ({final.mark}), last {number(last)}"


def _attempt(attempt: Mapping[str, Any]) -> str:
    ended = attempt["ended"] or "…"
    return (
        f"steps {attempt['from_step']} to {attempt['to_step']}, {attempt['started']} to {ended}: "
        f"{attempt['reason'] or 'running, or killed'}"
    )
