"""`everstep launch`."""

import sys
from typing import Annotated, Any

import typer

from everstep.cli.commands import new_app
from everstep.errors import UsageError
from everstep.launch.child_gang import ProcessCount
from everstep.launch.supervisor import supervise

app = new_app()

Command = Annotated[
    list[str],
    typer.Argument(
        metavar="-- COMMAND... | EXPERIMENT...",
        help="Program and arguments, after --; with --processes, also what follows `everstep train`.",
    ),
]
MaxRestarts = Annotated[int, typer.Option(metavar="N", help="How often it may be restarted.")]
Backoff = Annotated[float, typer.Option(metavar="SECONDS", help="The first pause; it doubles, up to a minute.")]
Processes = Annotated[
    str | None,
    typer.Option(metavar="N", help="Train with N processes on this machine; 2..8: as many as it has devices for."),
]


@app.command(
    context_settings={"ignore_unknown_options": True},
    epilog="Example: everstep launch --processes 2 mnist/mlp --model-dir runs/two",
)
def launch(
    context: typer.Context,
    command: Command,
    max_restarts: MaxRestarts = 10,
    backoff: Backoff = 1.0,
    processes: Processes = None,
) -> None:
    """Run a command; restart it when it dies.

    Exit codes 0 (done) and 2 (bad input) end it, and so does a signal sent to this process, which is passed on, unless
    the command survives it for a minute, as SIGUSR1. Three restarts in a row without a new checkpoint end it too, with
    a diagnosis. It exits with the command's last exit code.

    With --processes several processes train one run together. When one dies or freezes, all are restarted. The output
    of the first one is shown, that of the others is in MODEL_DIR/processes.
    """
    is_program = "--" in context.obj
    if processes is None:
        _refuse_options(context, [] if is_program else command)
        raise typer.Exit(supervise(command, max_restarts, backoff))
    program = command if is_program else [sys.executable, "-m", "everstep", "train", *command]
    raise typer.Exit(supervise(program, max_restarts, backoff, ProcessCount.parse(processes)))


def _refuse_options(context: Any, command: list[str]) -> None:
    """Refuses an option of the command that stands where it could be ours."""
    option = next((word for word in command if word.startswith("-")), None)
    if option is not None:
        raise UsageError(f"No such option: {option} (see: {context.command_path} --help)")
