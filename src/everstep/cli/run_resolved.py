"""Running a resolved experiment, for `everstep train` and `everstep eval`."""

import contextlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from everstep import redaction, storage
from everstep.checkpoint.remote import working_copy
from everstep.cli.backends import load_backend
from everstep.cli.output import quiet
from everstep.cli.resolving import Resolved
from everstep.config import get_task, operative_config
from everstep.engine import join_gang
from everstep.experiment_config import Mode
from everstep.gang import current_gang, failing_together
from everstep.run import Chosen, check_keys
from everstep.types import Logs


def run_resolved(
    resolved: Resolved,
    mode: str,
    directory: Path | str,
    export: bool = True,
    allow_change: Sequence[str] = (),
    checkpoint: Chosen | None = None,
) -> Logs:
    """Creates the task and runs it, in a directory or at a URL; returns the last logs.

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
    Mode(mode)
    with failing_together():
        join_gang()
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
        from everstep.experiment import EntryPoint, run_experiment

        load_backend(params.runtime.seed)
    task = get_task(params.task, logging_dir=str(directory))
    try:
        with _at_checkpoint(checkpoint) as settings:
            _, logs = run_experiment(
                task,
                params,
                directory,
                mode,
                experiment=resolved.experiment,
                export=export,
                allow_change=allow_change,
                entry_point=EntryPoint(header=resolved.header()),
                **settings,
            )
    finally:
        if "train" in mode and directory.is_dir() and current_gang().is_first:
            _save_gin(directory)
    return {redaction.text(name): value for name, value in logs.items()}


@contextlib.contextmanager
def _at_checkpoint(checkpoint: Chosen | None) -> Iterator[dict[str, Any]]:
    """Yields arguments of `run_experiment` that evaluate this checkpoint and leave the run unchanged."""
    if checkpoint is None:
        yield {}
        return
    from everstep.run import as_checkpoint

    with as_checkpoint(checkpoint) as path:
        yield {"checkpoint": path, "save_summary": False}


def _save_gin(directory: Path) -> None:
    """Writes what gin configurables were called with, which is known only after the run."""
    text = operative_config()
    if text is not None:
        with contextlib.suppress(OSError):  # a full disk was reported; how the run ended counts
            storage.write_text(directory / "operative_config.gin", redaction.text(text))
