"""`everstep flow`."""

from typing import Annotated

import typer

from everstep.cli import (
    aligned,
    choose_backend,
    exit_on_sigterm,
    load_project_backend,
    new_app,
    number,
    options,
    print_json,
    print_last,
    quiet,
    without_restarts,
)
from everstep.errors import UsageError
from everstep.launch import supervise
from everstep.projects.flow import FlowProject, create_task, execute

app = new_app()

Task = Annotated[str | None, typer.Argument(metavar="NAME", help="A task: a class in the project's train.py.")]
Overrides = Annotated[
    list[str] | None, typer.Argument(metavar="KEY=VALUE", help="Values that win over all files: Mnist_B.epoch=1.")
]
ModelDir = Annotated[
    str | None, typer.Option("--model-dir", metavar="DIR", help="The run directory; by default runs/NAME-DIGEST.")
]
New = Annotated[bool, typer.Option("--new", help="Start a new run although an unfinished one exists.")]
Multirun = Annotated[
    bool, typer.Option("-m", "--multirun", help="Run every combination of values such as Mnist_B.epoch=1,2 seed=1,2.")
]


@app.command(epilog="Example: everstep flow Mnist_B Mnist_B.epoch=1")
def flow(
    context: typer.Context,
    name: Task = None,
    overrides: Overrides = None,
    project: options.Project = None,
    backend: options.ProjectBackend = None,
    model_dir: ModelDir = None,
    new: New = False,
    allow_change: options.AllowChange = None,
    max_restarts: options.MaxRestarts = 0,
    multirun: Multirun = False,
    json: options.Json = False,
) -> None:
    """Run a task of a flow: fetch, prepare, train, log.

    Run again, an interrupted run resumes; after a finished one a new run starts. Works in any folder of the project.
    """
    home = FlowProject.find(project)
    if max_restarts:  # the restarted process does everything else
        raise typer.Exit(supervise(without_restarts(context.obj), max_restarts))
    choose_backend(backend)
    if name is not None and "=" not in name:
        home.refuse_unwritten(name)
    with quiet():
        home.load()
    if name is None or "=" in name:
        tasks = ", ".join(sorted(home.tasks())) or "none"
        raise UsageError("no task is given", key="NAME", remedy=f"everstep flow NAME; tasks: {tasks}")
    if multirun:
        from everstep.projects.commands.swept_flows import sweep_flow

        sweep_flow(home, name, overrides or (), backend, model_dir)
        return
    task = create_task(
        name, overrides or (), home, model_dir=model_dir, new=new, backend=backend, allow_change=allow_change or ()
    )
    directory = task._everstep_opened().directory
    with exit_on_sigterm(directory):
        with quiet():
            load_project_backend()
            from everstep.projects.flow import FlowConfig  # noqa: F401  loads Keras
        execute(task)
    if json:
        print_json({"task": type(task).__name__, "run": str(directory), "metrics": dict(task.metrics)})
    else:
        rows = [(name, number(value)) for name, value in task.metrics.items()]
        print_last(aligned([*rows, ("run", str(directory))]))
