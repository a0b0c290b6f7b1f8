"""Running a resolved experiment: the first lines of the command line that need Keras."""

from pathlib import Path

from everstep.cli.request import Resolved
from everstep.config import get_task
from everstep.engine import backend
from everstep.errors import UsageError, nearest
from everstep.types import Logs


def run(resolved: Resolved, mode: str, directory: Path, export: bool = True) -> Logs:
    """Makes the task and runs it; returns the last logs.

    Raises:
      UsageError: The request cannot be carried out; nothing is left behind.
      TrainingError: The run started and failed.
    """
    from everstep import experiment  # imports Keras, so only now that the backend is chosen

    if mode not in experiment.MODES:
        raise UsageError(f"--mode: unknown mode {mode!r}; {nearest(mode, experiment.MODES)}")
    params = resolved.params
    backend.prepare(params.runtime.seed)  # before the first object of the user's is made
    task = get_task(params.task, logging_dir=str(directory))
    logs = experiment.run_experiment(
        None, task, mode, params, directory, experiment=resolved.experiment, export=export
    )[1]
    return logs
