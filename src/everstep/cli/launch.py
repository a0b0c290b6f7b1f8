"""`everstep launch`."""

import dataclasses
import functools
import math
import sys
from collections.abc import Callable
from typing import Annotated, Any

import typer

from everstep.cli import train
from everstep.cli.command import new_app
from everstep.cli.options import ExperimentRequest
from everstep.cli.resolving import resolve
from everstep.config import walk
from everstep.errors import UsageError, nearest
from everstep.launch import LocalGang, ProcessCount, RayCluster, SlurmGang, supervise

app = new_app()

PLACES = ("here", "slurm", "ray")

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
    typer.Option(metavar="N", help="Train with N processes; 2..8: as many as there are devices or places for."),
]
On = Annotated[
    str,
    typer.Option(
        "--on", metavar="NAME", help="Where the processes run: here, slurm (in this allocation), or ray (a cluster)."
    ),
]
Address = Annotated[
    str | None, typer.Option(metavar="HOST:PORT", help="Ray: the cluster; by default $RAY_ADDRESS, or this machine's.")
]
NumCpu = Annotated[int, typer.Option("--n-cpu", metavar="N", help="Ray: processors of each process.")]
Gpus = Annotated[
    int | None, typer.Option(metavar="N", help="Ray: GPUs of each process; by default 1, if the cluster has any.")
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
    place: On = "here",
    address: Address = None,
    n_cpu: NumCpu = 1,
    gpus: Gpus = None,
) -> None:
    """Run a command; restart it when it dies.

    Exit codes 0 (done) and 2 (bad input) end it, and so does a signal sent to this process, which is passed on, unless
    the command survives it for a minute, as SIGUSR1. Three restarts in a row without a new checkpoint end it too, with
    a diagnosis. It exits with the command's last exit code.

    With --processes several processes train one run together. When one dies or freezes, all are restarted. The output
    of the first one is shown, that of the others is in MODEL_DIR/processes; on Slurm, that of all is shown.
    """
    if place not in PLACES:
        raise UsageError("there is no such place", key="--on", received=place, remedy=nearest(place, PLACES))
    is_program = "--" in context.obj
    if processes is None:
        _refuse_options(context, [] if is_program else command)
        if place != "here":
            raise UsageError(f"is required for --on {place}", key="--processes", remedy="name how many processes train")
        raise typer.Exit(supervise(command, max_restarts, backoff))
    program = command if is_program else [sys.executable, "-m", "everstep", "train", *command]
    count = ProcessCount.parse(processes)
    if count.least < count.most and not is_program:
        count = dataclasses.replace(count, batch_size=_batch_size(command))
    start: Callable[..., Any] = SlurmGang if place == "slurm" else LocalGang
    if place == "ray":  # connects before signals are handled: Ray sets a handler of its own
        start = RayCluster(address, n_cpu, gpus).start
    raise typer.Exit(supervise(program, max_restarts, backoff, functools.partial(start, count=count)))


def _batch_size(words: list[str]) -> int:
    """Returns the training batch of the experiment that `everstep train` would run with these words.

    Of several tasks, it is what all their batches can be divided by.
    """
    context = typer.main.get_command(train.app).make_context("train", list(words))
    request = ExperimentRequest(
        **{field.name: context.params[field.name] for field in dataclasses.fields(ExperimentRequest)}
    )
    sizes = {
        path: value
        for path, value in walk(resolve(request).params.as_dict())
        if path.endswith("train_data.global_batch_size")
    }
    own = sizes.pop("task.train_data.global_batch_size", 0)
    return math.gcd(*sizes.values()) if sizes else int(own)


def _refuse_options(context: Any, command: list[str]) -> None:
    """Refuses an option of the command that stands where it could be ours."""
    option = next((word for word in command if word.startswith("-")), None)
    if option is not None:
        raise UsageError(f"No such option: {option} (see: {context.command_path} --help)")
