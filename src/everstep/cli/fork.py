"""`everstep fork`."""

from pathlib import Path
from typing import Annotated

import typer

from everstep.cli import completion, options
from everstep.cli.command import new_app
from everstep.cli.output import print_last
from everstep.forks import train_fork
from everstep.trained import local_run

app = new_app()

Run = Annotated[str, typer.Argument(metavar="RUN", help="A run directory.", autocompletion=completion.runs)]
Words = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[KEY=VALUE...] [-- COMMAND...]",
        help="Values that the fork has instead; or, after --, the program that trains it.",
    ),
]
At = Annotated[
    int, typer.Option("--at", metavar="STEP", help="The step of the checkpoint that the new run begins with.")
]
ModelDir = Annotated[
    str | None, typer.Option(metavar="DIR", help="The directory of the new run; by default RUN-from-STEP.")
]


@app.command(epilog="Example: everstep fork runs/mnist-local-5f2c7a90b1 --at 500 trainer.train_steps=2000")
def fork(
    context: typer.Context,
    run: Run,
    at: At,
    words: Words = None,
    model_dir: ModelDir = None,
    allow_change: options.AllowChange = None,
) -> None:
    """Start a new run from the exact state of another one.

    Weights, optimizer, position in the data and random numbers are those of the checkpoint. Unchanged, the fork ends
    with the bits of its parent. Values given here replace those of an experiment; other keys are checked as in a
    resumed run. A program is started again as it was, or with what follows --: its first run directory is the fork's.
    """
    given, is_command = words or [], "--" in context.obj
    changes, command = ([], given) if is_command else (given, [])
    place, code = train_fork(local_run(run), at, model_dir, changes, allow_change or (), command)
    if not code:
        print_last(f"forked {Path(run)} at step {at} into {place}")
    raise typer.Exit(code)
