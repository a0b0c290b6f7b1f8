"""The model of a run, for the commands that ask it or hand it on."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from everstep.cli import options
from everstep.cli.quiet import quiet
from everstep.cli.request import Resolved, resolve
from everstep.config import get_task
from everstep.engine import backend as backends
from everstep.errors import UsageError
from everstep.inference.finding import Found


def choose_backend(asked: str | None, found: Found) -> None:
    """Takes the backend that the run was trained on, where it is installed and nobody asks for another."""
    recorded = found.backend if found.backend in backends.installed() else None
    backends.select(asked or recorded, "--backend" if asked else "run.json: backend")


def quietly(make: Callable[[], Any]) -> Any:
    """Makes something without the backends' chatter; what is wrong is told after it, in its line alone."""
    with quiet():
        try:
            return make()
        except UsageError as error:
            wrong = error
    raise wrong


def rebuilt(directory: Path, imports: Sequence[str] | None) -> Any:
    """Builds the model of a run that exported none, as its experiment does; it has no trained weights yet.

    Raises:
      UsageError: There is no experiment that could.
    """
    return get_task(experiment_of(directory, imports).params.task).build_model()


def experiment_of(directory: Path, imports: Sequence[str] | None) -> Resolved:
    """Returns the experiment of a run that exported no model.

    Raises:
      UsageError: There is none that could build the model anew.
    """
    stored = directory / "config.yaml"
    if not stored.is_file() or not list(directory.glob("checkpoints/*")):
        raise UsageError(f"{str(directory)!r} has neither an exported model nor a checkpoint: train it first")
    try:
        return resolve(options.Request(config_files=[str(stored)], imports=list(imports or ())))
    except UsageError as error:
        why = str(error).partition(";")[0]
        raise UsageError(
            f"{str(directory)!r} has no exported .keras model, and cannot be built anew ({why}): name the model that "
            "was exported elsewhere, such as a Training's artifacts_dir, or --import its experiment"
        ) from error
