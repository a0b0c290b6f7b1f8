"""`everstep launch`."""

from typing import Annotated

import typer

from everstep.cli.commands import new_app
from everstep.launch.supervisor import supervise

app = new_app()

Command = Annotated[list[str], typer.Argument(metavar="-- COMMAND...", help="Program and arguments, after --.")]
MaxRestarts = Annotated[int, typer.Option(metavar="N", help="How often it may be started again.")]
Backoff = Annotated[float, typer.Option(metavar="SECONDS", help="The first pause; it doubles, up to a minute.")]


@app.command(epilog="Example: everstep launch --max-restarts 20 -- everstep train mnist/mlp")
def launch(command: Command, max_restarts: MaxRestarts = 10, backoff: Backoff = 1.0) -> None:
    """Run a command; start it again when it dies.

    Done (0) and bad input (2) end it, and so does a signal sent to this process, which is passed on; not one like
    SIGUSR1 that the command lives on with for a minute. Three restarts in a row without a new checkpoint end it too,
    with a diagnosis. It ends with the command's last exit code.
    """
    raise typer.Exit(supervise(command, max_restarts, backoff))
