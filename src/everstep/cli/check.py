"""`everstep check`."""

import contextlib
import dataclasses
import importlib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Annotated, Any

import typer

from everstep import redaction
from everstep.cli import options
from everstep.cli.commands import new_app
from everstep.cli.ending import print_last
from everstep.cli.output import json_text
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
from everstep.components.config_file import ConfigNotFound, FoundMultipleConfigs, find_config
from everstep.components.interruption import ends_when_asked
from everstep.components.run_folder import RunFolder
from everstep.errors import UsageError

app = new_app()

MaxSamples = Annotated[
    int | None, typer.Option(metavar="N", help="Read no more than N samples of each split; by default all.")
]


@app.command(epilog="Example: everstep check baseline --project-root ~/mnist --data-dir /data/mnist")
def check(
    run_name: RunName = None,
    name: RunNameOption = None,
    project_root: ProjectRoot = ".",
    data_dir: DataDir = None,
    backend: Backend = None,
    max_samples: MaxSamples = None,
    json: options.Json = False,
) -> None:
    """Check a run's components before it is trained.

    Data, batches, model, evaluation and export are tried. One line for each check: ok, FAIL, warn for what may be meant
    that way, skip for what was not looked at. Ends with 1 if one has failed. Writes nothing into the project.
    """
    root = Path(project_root).expanduser().resolve()
    wanted = _existing(root, one_name(run_name, name, "check"), data_dir, max_samples)
    choose_backend(backend)
    with ends_when_asked(lambda: None), _outcomes(wanted, root, data_dir, max_samples) as outcomes:
        found = list(outcomes) if json else list(_shown(outcomes))
    if json:
        print_last(redaction.text(json_text([dataclasses.asdict(outcome) for outcome in found])))
    if any(outcome.status == "FAIL" for outcome in found):
        raise typer.Exit(1)


def _existing(root: Path, name: str, data_dir: str | None, max_samples: int | None) -> str:
    """Returns the run's name, where there is such a run; what is in its folder is a check's business."""
    with contextlib.suppress(ConfigNotFound, FoundMultipleConfigs):
        find_config(RunFolder(root, name).path)
    if data_dir is not None and not Path(data_dir).expanduser().exists():
        raise UsageError(f"--data-dir: there is no {data_dir!r}")
    if max_samples is not None and max_samples < 1:
        raise UsageError(f"--max-samples: received {max_samples}, must be 1 or more")
    return name


@contextlib.contextmanager
def _outcomes(name: str, root: Path, data_dir: str | None, max_samples: int | None) -> Iterator[Iterable[Any]]:
    with quiet():
        wake_backend()
        checks = importlib.import_module("everstep.components.checks.table")
        subject = importlib.import_module("everstep.components.checks.subject").Subject
    with subject(name, root, data_dir, max_samples) as project:
        yield checks.check_all(project)


def _shown(outcomes: Iterable[Any]) -> Iterator[Any]:
    """Prints each line as soon as it is known."""
    for outcome in outcomes:
        print_last(redaction.text(str(outcome)))
        yield outcome
