"""`everstep launch`."""

from typing import Annotated

import typer

from everstep.cli.commands import new_app
from everstep.launch.supervisor import supervise

app = new_app()

Command = Annotated[list[str], typer.Argument(metavar="-- COMMAND...", help="Program and arguments, after --.")]
MaxRestarts = Annotated[int, typer.Option(metavar="N", help="How often it may be restarted.")]
Backoff = Annotated[float, typer.Option(metavar="SECONDS", help="The first pause; it doubles, up to a minute.")]


@app.command(epilog="Example: everstep launch --max-restarts 20 -- everstep train mnist/mlp")
def launch(command: Command, max_restarts: MaxRestarts = 10, backoff: Backoff = 1.0) -> None:
    """Run a command; restart it when it dies.

    Exit codes 0 (done) and 2 (bad input) end it, and so does a signal sent to this process, which is passed on, unless
    the command survives it for a minute, as SIGUSR1. Three restarts in a row without a new checkpoint end it too, with
    a diagnosis. It exits with the command's last exit code.
    """
    raise typer.Exit(supervise(command, max_restarts, backoff))
