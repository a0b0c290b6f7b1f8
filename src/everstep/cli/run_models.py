"""The model of a run, for the commands that predict with it or export it."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from everstep.checkpoint import newest_step
from everstep.cli import options
from everstep.cli.output import quiet
from everstep.cli.resolving import Resolved, resolve
from everstep.config import get_task
from everstep.engine import backend as backends
from everstep.errors import UsageError
from everstep.trained import Found


def choose_backend_of(found: Found, given: str | None) -> None:
    """Selects the backend that is given, else the one that the run was trained on if it is installed."""
    recorded = found.backend if found.backend in backends.installed() else None
    backends.select(given or recorded, "--backend" if given else "run.json: backend")


def quietly(make: Callable[[], Any]) -> Any:
    """Calls `make` without the backends' start-up messages; a `UsageError` is raised after they are dropped."""
    with quiet():
        try:
            return make()
        except UsageError as error:
            wrong = error
    raise wrong


def rebuild_model(directory: Path, imports: Sequence[str] | None) -> Any:
    """Builds the model of a run that exported none, by its experiment; without trained weights.

    Raises:
      UsageError: No experiment can build it.
    """
    return _built(experiment_of(directory, imports).params)[1]


def trained_task(directory: Path, checkpoint: str | None, params: Any) -> tuple[Any, Any]:
    """Returns the task of a run, and its model with the weights of a checkpoint, by default the newest.

    Args:
      directory: The run directory.
      checkpoint: The value of `--checkpoint`; None for the newest.
      params: The run's configuration.

    Raises:
      UsageError: There is no such checkpoint.
    """

    def make() -> tuple[Any, Any]:
        from everstep.trained import load_run_checkpoint

        task, model = _built(params)
        load_run_checkpoint(model, directory, checkpoint or "last")
        return task, model

    return quietly(make)


def _built(params: Any) -> tuple[Any, Any]:
    """Returns the task of an experiment, and its model as the run computes it, without trained weights."""
    from everstep.engine import precision, use_float8

    task = get_task(params.task)
    with precision(params.runtime.mixed_precision_dtype):
        model = task.build_model()
    if params.runtime.float8:
        use_float8(model)  # the scales are among the weights
    return task, model


def experiment_of(directory: Path, imports: Sequence[str] | None) -> Resolved:
    """Returns the experiment of a run that exported no model.

    Raises:
      UsageError: No experiment can build its model.
    """
    stored = directory / "config.yaml"
    if not stored.is_file() or newest_step(directory) is None:
        raise UsageError(
            "has neither an exported model nor a checkpoint",
            key="RUN",
            received=str(directory),
            remedy="train it first",
        )
    try:
        return resolve(options.ExperimentRequest(config_files=[str(stored)], imports=list(imports or ())))
    except UsageError as error:
        why = ": ".join(filter(None, (error.key, error.reason)))
        raise UsageError(
            f"has no exported .keras model, and its model cannot be built ({why})",
            key="RUN",
            received=str(directory),
            remedy="name the model that was exported elsewhere, such as a Training's artifacts_dir, or --import its "
            "experiment",
        ) from error
