"""`everstep flow`."""

import importlib
from typing import Annotated, Any

import typer

from everstep import redaction
from everstep.cli import options
from everstep.cli.commands import new_app
from everstep.cli.ending import print_last, unsupervised
from everstep.cli.output import aligned, json_text, number
from everstep.cli.project_options import Backend, choose_backend, wake_backend
from everstep.cli.quiet import quiet
from everstep.components.interruption import ends_when_asked
from everstep.errors import UsageError
from everstep.flow.program import NO_MULTIRUN
from everstep.flow.project import FlowProject
from everstep.flow.running import create_task, execute
from everstep.launch.progress import newest_checkpoint
from everstep.launch.supervisor import supervise

app = new_app()

Task = Annotated[str | None, typer.Argument(metavar="NAME", help="A task: a class in the project's train.py.")]
Overrides = Annotated[
    list[str] | None, typer.Argument(metavar="KEY=VALUE", help="Values that win over all files: Mnist_B.epoch=1.")
]
Project = Annotated[
    str | None, typer.Option("--project", metavar="DIR", help="The project; by default the one around this folder.")
]
ModelDir = Annotated[
    str | None, typer.Option("--model-dir", metavar="DIR", help="The run directory; by default runs/NAME-DIGEST.")
]
New = Annotated[bool, typer.Option("--new", help="Start anew although there is a run that did not end.")]
AllowChange = Annotated[
    list[str] | None,
    typer.Option(metavar="KEY", help="Resume although this key has another value than before; repeatable."),
]
Multirun = Annotated[bool, typer.Option("-m", "--multirun", hidden=True)]
MaxRestarts = Annotated[int, typer.Option(metavar="N", help="Start it again, up to N times, when it dies.")]


@app.command(epilog="Example: everstep flow Mnist_B Mnist_B.epoch=1")
def flow(
    context: typer.Context,
    name: Task = None,
    overrides: Overrides = None,
    project: Project = None,
    backend: Backend = None,
    model_dir: ModelDir = None,
    new: New = False,
    allow_change: AllowChange = None,
    max_restarts: MaxRestarts = 0,
    multirun: Multirun = False,
    json: options.Json = False,
) -> None:
    """Run a task of a project: fetch, prepare, train, log.

    Run again, a run that was interrupted goes on; one that is done is left alone, and a new one starts. Works in any
    folder of the project. Without NAME, lists the tasks.
    """
    if multirun:
        raise UsageError(NO_MULTIRUN)
    home = FlowProject.find(project)
    if max_restarts:  # all else is the business of the process that may die
        raise typer.Exit(supervise(unsupervised(context.obj), max_restarts))
    choose_backend(backend)
    with quiet():
        home.load()
    if name is None or "=" in name:
        raise UsageError(f"no task is named: everstep flow NAME; tasks: {', '.join(sorted(home.tasks())) or 'none'}")
    task = create_task(
        name, overrides or (), home, model_dir=model_dir, new=new, backend=backend, allow_change=allow_change or ()
    )
    directory = task._opened().directory
    with ends_when_asked(lambda: newest_checkpoint(directory)):
        with quiet():
            wake_backend()
            importlib.import_module("everstep.flow.training")
        execute(task)
    print_last(redaction.text(_shown(task, directory, json)))


def _shown(task: Any, directory: Any, as_json: bool) -> str:
    if as_json:
        return json_text({"task": type(task).__name__, "run": str(directory), "metrics": dict(task.metrics)})
    rows = [(name, number(value)) for name, value in task.metrics.items()]
    return aligned([*rows, ("run", str(directory))])
