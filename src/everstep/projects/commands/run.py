"""`everstep run`."""

import dataclasses
from pathlib import Path
from typing import Any

import typer

from everstep.cli import (
    aligned,
    choose_backend,
    command_meant,
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
from everstep.projects.components import RunFolder, open_run

app = new_app()


@app.command(epilog="Example: everstep run baseline --project-root ~/mnist --data-dir /data/mnist")
def run(
    context: typer.Context,
    run_name: options.RunName = None,
    name: options.RunNameOption = None,
    project_root: options.ProjectRoot = ".",
    data_dir: options.DataDir = None,
    eval_only: options.EvalOnly = False,
    backend: options.ProjectBackend = None,
    allow_change: options.AllowChange = None,
    max_restarts: options.MaxRestarts = 0,
    json: options.Json = False,
) -> None:
    """Train, export and evaluate a run of components.

    Run again, it resumes. The run is the folder runs/RUN_NAME with one config file. What is done is not repeated; the
    export is evaluated on every sample of the validation and test data.
    """
    if max_restarts:  # the restarted process does everything else
        raise typer.Exit(supervise(without_restarts(context.obj), max_restarts))
    wanted = options.one_name(run_name, name, "run")
    try:
        opened = open_run(wanted, project_root, data_dir)  # a bad request fails before Keras is loaded
    except UsageError as error:
        raise _with_command_meant(wanted, error) from None
    opened.require_modules()
    folder = opened.folder
    choose_backend(backend)
    with exit_on_sigterm(folder.training):
        with quiet():
            load_project_backend()
            from everstep.projects.components import Orchestrator
        orchestrator = Orchestrator(wanted, project_root, data_dir, allow_change=allow_change or ())
        results = orchestrator.evaluate() if eval_only else orchestrator.run()
    if json:
        files = {label: str(path) for label, path in folder.shown_files().items()}
        print_json({"run": str(folder.path), "results": results, "files": files})
    else:
        print_last(_as_text(folder, results))


def _with_command_meant(name: str, error: UsageError) -> UsageError:
    """Returns the error of a name that is no run; where another command is meant, `run list`, with what to type."""
    (problem,) = error.problems[:1]
    if problem.key != "run_name" or not (meant := command_meant(name)):
        return error
    return UsageError(dataclasses.replace(problem, remedy=f"did you mean {meant}?"))


def _as_text(folder: RunFolder, results: Any) -> str:
    """Returns the means, one row for each number, and below them the files."""
    splits = list(results)
    rows = []
    for kind in ("model.evaluate", "eval_funcs"):
        for name in dict.fromkeys(name for split in splits for name in results[split].get(kind, {})):
            values = [results[split].get(kind, {}).get(name) for split in splits]
            rows.append((name, *("" if value is None else number(value) for value in values)))
    files = [(label, str(_near(path))) for label, path in folder.shown_files().items()]
    return f"{aligned([('mean', *splits), *rows])}\n\n{aligned(files)}"


def _near(path: Path) -> Path:
    """Returns a path relative to the current directory, if it is below it."""
    here = Path.cwd()
    return path.relative_to(here) if path.is_relative_to(here) else path
