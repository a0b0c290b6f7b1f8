"""`everstep reproduce`."""

import re
from pathlib import Path
from typing import Annotated

import typer

from everstep import redaction
from everstep.cli import options
from everstep.cli.commands import new_app
from everstep.cli.ending import print_last
from everstep.cli.output import json_text
from everstep.errors import TrainingError, UsageError
from everstep.inference.finding import run_of
from everstep.remote.urls import is_url
from everstep.remote.working import local_view
from everstep.reproduce.reproducing import compare_runs
from everstep.reproduce.reproducing import reproduce as do_again

app = new_app()

Run = Annotated[str, typer.Argument(metavar="RUN", help="A run directory, its URL, or the id of a run.")]
Steps = Annotated[int | None, typer.Option(metavar="N", help="Go only so far: a cheap proof of a part.")]
ModelDir = Annotated[
    str | None, typer.Option(metavar="DIR", help="Where to do it again, and keep it; by default nothing is kept.")
]
With = Annotated[
    str | None, typer.Option("--with", metavar="OTHER", help="Compare with this run, which is there; run nothing.")
]

Project = Annotated[
    str | None, typer.Option("--project", metavar="DIR", help="The folder of the code; by default the run's project.")
]

_ID = re.compile(r"[0-9a-f]{32}")


@app.command(epilog="Example: everstep reproduce runs/mnist-local-5f2c7a90b1 --steps 100")
def reproduce(
    run: Run,
    steps: Steps = None,
    model_dir: ModelDir = None,
    with_: With = None,
    project: Project = None,
    json: options.Json = False,
) -> None:
    """Do a run again from its record, and compare.

    Configuration, seeds and backend are those that were recorded; code, data and packages are those that are here.
    Call it in the folder that the run was started in. Prints identical, or the first difference and what explains it:
    seed, config, data, code, package, hardware or randomness. The exit code is 0 for identical, 1 for different, and 2
    where it cannot be told.
    """
    for name, value in (("--model-dir", model_dir), ("--project", project)):
        if with_ is not None and value is not None:
            raise UsageError(f"{name}: nothing is run with --with; leave one of them out")
    try:
        place = _local(run)
        if with_ is None:
            verdict = do_again(place, steps, model_dir, show=not json, project=project)
        else:
            verdict = compare_runs(place, _local(with_), steps)
    except (OSError, TrainingError) as error:  # 1 would say that it is different
        reason = str(getattr(error, "strerror", None) or error)
        path = getattr(error, "filename", None)
        told = f"{reason}: {str(path)!r}" if path else " ".join(reason.split())[:300]
        raise UsageError(f"{run!r} cannot be reproduced: {told}") from error
    print_last(redaction.text(json_text(verdict.as_dict()) if json else "\n".join(verdict.lines())))
    raise typer.Exit(0 if verdict.identical else 1)


def _local(run: str) -> str:
    """Returns the directory that is meant, on this machine."""
    if is_url(run):
        return str(local_view(run))
    return str(run_of(run)) if _ID.fullmatch(run) and not Path(run).exists() else run
