"""`everstep reproduce`."""

import re
from pathlib import Path
from typing import Annotated

import typer

from everstep.cli import completion, options
from everstep.cli.command import new_app
from everstep.cli.output import print_json, print_last
from everstep.errors import TrainingError, UsageError
from everstep.reproduce import compare_runs
from everstep.reproduce import reproduce as repeat
from everstep.trained import local_run, run_of

app = new_app()

Run = Annotated[
    str,
    typer.Argument(metavar="RUN", help="A run directory, its URL, or the id of a run.", autocompletion=completion.runs),
]
Steps = Annotated[int | None, typer.Option(metavar="N", help="Repeat only the first N steps: a cheap partial proof.")]
ModelDir = Annotated[
    str | None, typer.Option(metavar="DIR", help="Where to repeat it, and keep it; by default nothing is kept.")
]
With = Annotated[
    str | None, typer.Option("--with", metavar="OTHER", help="Compare with this existing run; run nothing.")
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
    """Repeat a run from its record, and compare.

    Configuration, seeds and backend are the recorded ones; code, data and packages are those installed here. Call it in
    the folder that the run was started in. Prints identical, or the first difference and what explains it: seed,
    config, data, code, package, hardware or randomness. The exit code is 0 for identical, 1 for different, and 2 if it
    cannot be decided.
    """
    for name, value in (("--model-dir", model_dir), ("--project", project)):
        if with_ is not None and value is not None:
            raise UsageError("nothing is run with --with", key=name, received=value, remedy="omit one of them")
    try:
        place = _local(run)
        if with_ is None:
            verdict = repeat(place, steps, model_dir, show=not json, project=project)
        else:
            verdict = compare_runs(place, _local(with_), steps)
    except (OSError, TrainingError) as error:  # exit code 1 would mean different
        reason = str(getattr(error, "strerror", None) or error)
        path = getattr(error, "filename", None)
        shown = f"{reason}: {str(path)!r}" if path else " ".join(reason.split())[:300]
        raise UsageError(f"cannot be reproduced: {shown}", key="RUN", received=run) from error
    if json:
        print_json(verdict.as_dict())
    else:
        print_last("\n".join(verdict.lines()))
    raise typer.Exit(0 if verdict.identical else 1)


def _local(run: str) -> str:
    """Returns the run's directory on this machine; a run may be given by its id."""
    return str(run_of(run)) if _ID.fullmatch(run) and not Path(run).exists() else local_run(run)
