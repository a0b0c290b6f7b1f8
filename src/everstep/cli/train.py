"""`everstep train`."""

from pathlib import Path
from typing import Annotated

import typer

from everstep import storage
from everstep.cli import options
from everstep.cli.commands import new_app
from everstep.cli.directory import run_directory
from everstep.cli.ending import print_last, unsupervised
from everstep.cli.output import aligned, number
from everstep.cli.quick_looks import check_quick_looks, rehearse
from everstep.cli.request import resolve
from everstep.cli.running import run
from everstep.launch.supervisor import supervise
from everstep.remote.urls import is_url, join
from everstep.types import Logs

app = new_app()

Mode = Annotated[
    str,
    typer.Option(
        metavar="MODE",
        help="train, eval, train_and_eval, train_and_post_eval or continuous_eval.",
    ),
]
ModelDir = Annotated[
    str | None,
    typer.Option(metavar="DIR", help="The run directory, or its URL; by default runs/EXPERIMENT-DIGEST."),
]
AllowChange = Annotated[
    list[str] | None,
    typer.Option(metavar="KEY", help="Resume although this key has another value than before; repeatable."),
]
MaxRestarts = Annotated[int, typer.Option(metavar="N", help="Start it again, up to N times, when it dies.")]
FastDevRun = Annotated[
    bool, typer.Option("--fast-dev-run", help="Try one batch of everything, export included, and keep nothing.")
]
ProfileFlag = Annotated[
    bool, typer.Option("--profile", help="Keep a trace of a few steps in DIR/profile; trainer.profile says of which.")
]
NoExport = Annotated[bool, typer.Option("--no-export", help="Do not export the trained model.")]


@app.command(epilog="Example: everstep train mnist/mlp trainer.train_steps=500 --backend jax")
@options.takes_request()
def train(
    context: typer.Context,
    request: options.Request,
    mode: Mode = "train_and_eval",
    model_dir: ModelDir = None,
    allow_change: AllowChange = None,
    no_export: NoExport = False,
    max_restarts: MaxRestarts = 0,
    fast_dev_run: FastDevRun = False,
    profile: ProfileFlag = False,
) -> None:
    """Train an experiment; run again, it resumes.

    Values come from the experiment, then from files, gin bindings, flags, --params-override and KEY=VALUE; later
    ones win.
    """
    check_quick_looks(request, mode, fast_dev_run, max_restarts)
    if fast_dev_run:
        rehearse(resolve(request), mode, export=not no_export)
        return
    if max_restarts:  # all else is the business of the process that may die, also what the user's modules do
        raise typer.Exit(supervise(unsupervised(context.obj), max_restarts))
    if profile:  # before the values that are spelled out, which win
        request.params_override = [*(request.params_override or ()), "trainer.profile=auto"]
    resolved = resolve(request)
    directory = run_directory(model_dir, resolved)
    logs = run(resolved, mode, directory, export=not no_export, allow_change=allow_change or ())
    print_last(_where_to_look(directory, logs, exported=mode.startswith("train") and not no_export))


def _where_to_look(directory: Path | str, logs: Logs, exported: bool) -> str:
    rows = [("run", str(directory)), ("curves", f"tensorboard --logdir {directory}")]
    rows += [("exported", path) for path in _exported(directory)] if exported else []
    return aligned([*rows, *((metric, number(value)) for metric, value in logs.items())])


def _exported(directory: Path | str) -> list[str]:
    if is_url(directory):
        return [join(str(directory), "export")]
    folder = Path(directory, "export")
    written = sorted(folder.iterdir()) if folder.is_dir() else []
    return [str(path) for path in written if not storage.is_temporary(path)]
