"""Running a resolved experiment: the first lines of the command line that need Keras."""

import contextlib
import importlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from everstep import redaction, storage
from everstep.cli.quiet import quiet
from everstep.cli.request import Resolved
from everstep.config import get_task
from everstep.config.gin.bindings import operative_config
from everstep.engine import backend
from everstep.experiment_config import check_mode
from everstep.remote.working import working_copy
from everstep.run.changes import check_keys
from everstep.run.chosen import Chosen
from everstep.types import Logs


def run(
    resolved: Resolved,
    mode: str,
    directory: Path | str,
    export: bool = True,
    allow_change: Sequence[str] = (),
    checkpoint: Chosen | None = None,
) -> Logs:
    """Makes the task and runs it, in a directory or at a URL; returns the last logs.

    Args:
      resolved: The experiment.
      mode: What to do.
      directory: The run directory.
      export: Whether to export what was trained.
      allow_change: Keys that may change although they alter what the run computes.
      checkpoint: What to evaluate in place of the newest checkpoint; then nothing in the run changes.

    Raises:
      UsageError: The request cannot be carried out; nothing is left behind.
      TrainingError: The run started and failed.
    """
    check_mode(mode)
    with working_copy(directory, "train" in mode, follow=mode == "continuous_eval") as local:
        return _run(resolved, mode, Path(local), export, allow_change, checkpoint)


def _run(
    resolved: Resolved,
    mode: str,
    directory: Path,
    export: bool,
    allow_change: Sequence[str],
    checkpoint: Chosen | None,
) -> Logs:
    params = resolved.params
    check_keys(directory, params, allow_change)
    with quiet():
        experiment = _load_backend(params.runtime.seed)
    task = get_task(params.task, logging_dir=str(directory))
    try:
        with _looking_at(checkpoint) as looking:
            _, logs = experiment.run_experiment(
                None,
                task,
                mode,
                params,
                directory,
                experiment=resolved.experiment,
                export=export,
                allow_change=allow_change,
                header=resolved.header(),
                **looking,
            )
    finally:
        if "train" in mode and directory.is_dir():
            _save_gin(directory)
    return {redaction.text(name): value for name, value in logs.items()}


@contextlib.contextmanager
def _looking_at(checkpoint: Chosen | None) -> Iterator[dict[str, Any]]:
    """Yields how `run_experiment` evaluates another checkpoint than the newest, and leaves the run as it is."""
    if checkpoint is None:
        yield {}
        return
    controllers = importlib.import_module("everstep.loop.at_checkpoint")
    with importlib.import_module("everstep.run.averaged").as_checkpoint(checkpoint) as path:
        yield {"controller_cls": controllers.at_checkpoint(path), "save_summary": False}


def _save_gin(directory: Path) -> None:
    """Writes what gin configurables were really called with; only known once they were."""
    text = operative_config()
    if text is not None:
        with contextlib.suppress(OSError):  # a full disk has been told of; how the run ended counts
            storage.write_text(directory / "operative_config.gin", redaction.text(text))


def _load_backend(seed: int) -> Any:
    """Imports Keras, now that its backend is chosen, and wakes the devices; returns `everstep.experiment`.

    The seed is set before the first object of the user's is made.
    """
    experiment = importlib.import_module("everstep.experiment")
    backend.prepare(seed)
    importlib.import_module("keras").ops.zeros(())  # not every backend lists its devices
    return experiment
