"""`everstep runs sync`: sends servers what they have not received."""

from pathlib import Path
from typing import Annotated

import typer

from everstep.checkpoint.remote import is_url
from everstep.cli import completion
from everstep.errors import Problem, TrainingError, UsageError
from everstep.run import named_run, read
from everstep.tracking import sync_all

Directory = Annotated[
    str, typer.Argument(metavar="DIR", help="A run directory, or its URL.", autocompletion=completion.runs)
]


def sync(directory: Directory) -> None:
    """Send MLflow and W&B the numbers of a run that they have not received yet."""
    if is_url(directory):
        raise UsageError(
            "unsent numbers are on the machine that trained", key="DIR", received=directory, remedy="name its directory"
        )
    directory = named_run(directory)
    read(directory)
    results = sync_all(directory)
    for result in results:
        print(f"{result.sent} points sent to {result.server}, {result.waiting} wait")
        if result.refused:
            path = Path(directory, "spool", "mlflow.refused.jsonl")
            print(f"{result.refused} entries refused for good: {path} says why")
    if failed := [Problem(result.server, f"takes no points: {result.problem}") for result in results if result.problem]:
        raise TrainingError(failed)
