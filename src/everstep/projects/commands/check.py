"""`everstep check`."""

import contextlib
import dataclasses
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Annotated, Any

import typer

from everstep.cli import (
    choose_backend,
    exit_on_sigterm,
    load_project_backend,
    new_app,
    options,
    print_json,
    print_last,
    quiet,
)
from everstep.errors import UsageError
from everstep.projects.components import ConfigNotFound, FoundMultipleConfigs, RunFolder, find_config

app = new_app()

MaxSamples = Annotated[
    int | None, typer.Option(metavar="N", help="Read no more than N samples of each split; by default all.")
]


@app.command(epilog="Example: everstep check baseline --project-root ~/mnist --data-dir /data/mnist")
def check(
    run_name: options.RunName = None,
    name: options.RunNameOption = None,
    project_root: options.ProjectRoot = ".",
    data_dir: options.DataDir = None,
    backend: options.ProjectBackend = None,
    max_samples: MaxSamples = None,
    json: options.Json = False,
) -> None:
    """Check a run's components before it is trained.

    Data, batches, model, evaluation and export are tried. One line for each check: ok, FAIL, warn for what is
    probably not intended, skip for what was not checked. Exits with 1 if one failed. Writes nothing into the project.
    The installation is checked by everstep doctor.
    """
    root = Path(project_root).expanduser().resolve()
    wanted = _existing(root, options.one_name(run_name, name, "check"), data_dir, max_samples)
    choose_backend(backend)
    with exit_on_sigterm(), _outcomes(wanted, root, data_dir, max_samples) as outcomes:
        found = list(outcomes) if json else list(_shown(outcomes))
    if json:
        print_json([dataclasses.asdict(outcome) for outcome in found])
    if any(outcome.status == "FAIL" for outcome in found):
        raise typer.Exit(1)


def _existing(root: Path, name: str, data_dir: str | None, max_samples: int | None) -> str:
    """Returns the run's name, if there is such a run; its folder's content is left to the checks."""
    with contextlib.suppress(ConfigNotFound, FoundMultipleConfigs):
        find_config(RunFolder(root, name).path)
    if data_dir is not None and not Path(data_dir).expanduser().exists():
        raise UsageError("does not exist", key="--data-dir", received=data_dir)
    if max_samples is not None and max_samples < 1:
        raise UsageError("must be at least 1", key="--max-samples", received=max_samples)
    return name


@contextlib.contextmanager
def _outcomes(name: str, root: Path, data_dir: str | None, max_samples: int | None) -> Iterator[Iterable[Any]]:
    with quiet():
        load_project_backend()
        from everstep.projects.components.checks import Subject, check_all
    with Subject(name, root, data_dir, max_samples) as project:
        yield check_all(project)


def _shown(outcomes: Iterable[Any]) -> Iterator[Any]:
    """Prints each line as soon as it is known."""
    for outcome in outcomes:
        print_last(str(outcome))
        yield outcome
