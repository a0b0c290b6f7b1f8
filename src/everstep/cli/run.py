"""`everstep run`."""

import importlib
from pathlib import Path
from typing import Annotated, Any

import typer

from everstep import redaction
from everstep.cli import options
from everstep.cli.commands import new_app
from everstep.cli.ending import print_last, unsupervised
from everstep.cli.output import aligned, json_text, number
from everstep.cli.project_options import (
    Backend,
    DataDir,
    ProjectRoot,
    RunName,
    RunNameOption,
    choose_backend,
    one_name,
    wake_backend,
)
from everstep.cli.quiet import quiet
from everstep.components.interruption import ends_when_asked
from everstep.components.opening import open_run
from everstep.components.run_folder import RunFolder
from everstep.launch.progress import newest_checkpoint
from everstep.launch.supervisor import supervise

app = new_app()

EvalOnly = Annotated[bool, typer.Option("--eval-only", help="Evaluate what is exported, and train nothing.")]
AllowChange = Annotated[
    list[str] | None,
    typer.Option(metavar="KEY", help="Resume although this key has another value than before; repeatable."),
]
MaxRestarts = Annotated[int, typer.Option(metavar="N", help="Start it again, up to N times, when it dies.")]

_FILES = {
    "validation rows": "validation_report.csv",
    "test rows": "eval_report.csv",
    "page": "reports/report.html",
    "model card": "README.md",
    "exported": "exported",
}


@app.command(epilog="Example: everstep run baseline --project-root ~/mnist --data-dir /data/mnist")
def run(
    context: typer.Context,
    run_name: RunName = None,
    name: RunNameOption = None,
    project_root: ProjectRoot = ".",
    data_dir: DataDir = None,
    eval_only: EvalOnly = False,
    backend: Backend = None,
    allow_change: AllowChange = None,
    max_restarts: MaxRestarts = 0,
    json: options.Json = False,
) -> None:
    """Train, export and evaluate a run of a project.

    Run again, it goes on. The run is the folder runs/RUN_NAME with one config file. What is done already is left alone;
    the export is evaluated on every sample of the validation and test data.
    """
    if max_restarts:  # all else is the business of the process that may die
        raise typer.Exit(supervise(unsupervised(context.obj), max_restarts))
    wanted = one_name(run_name, name, "run")
    folder = open_run(wanted, project_root, data_dir).folder  # a bad request fails before Keras is loaded
    choose_backend(backend)
    with ends_when_asked(lambda: newest_checkpoint(folder.training)):
        with quiet():
            wake_backend()
            components = importlib.import_module("everstep.components.orchestrator")
        made = components.Orchestrator(wanted, project_root, data_dir, allow_change=allow_change or ())
        results = made.evaluate() if eval_only else made.run()
    print_last(redaction.text(_as_json(folder, results) if json else _as_text(folder, results)))


def _as_json(folder: RunFolder, results: Any) -> str:
    files = {label: str(path) for label, path in _files(folder).items()}
    return json_text({"run": str(folder.path), "results": results, "files": files})


def _as_text(folder: RunFolder, results: Any) -> str:
    """Returns the means, one row for each number, and below them where to look."""
    splits = list(results)
    rows = [
        (name, *(_shown(results[split].get(kind, {}).get(name)) for split in splits))
        for kind in ("model.evaluate", "eval_funcs")
        for name in dict.fromkeys(name for split in splits for name in results[split].get(kind, {}))
    ]
    files = [(label, str(_near(path))) for label, path in _files(folder).items()]
    return f"{aligned([('mean', *splits), *rows])}\n\n{aligned(files)}"


def _shown(value: Any) -> str:
    return "" if value is None else number(value)


def _files(folder: RunFolder) -> dict[str, Path]:
    return {label: folder.path / name for label, name in _FILES.items() if (folder.path / name).exists()}


def _near(path: Path) -> Path:
    """Returns a path as one would type it here."""
    here = Path.cwd()
    return path.relative_to(here) if path.is_relative_to(here) else path
