"""Where a run begins: at its newest checkpoint, or with the initial weights of its model."""

from collections.abc import Callable
from typing import Any

from everstep.checkpoint import weights_digest
from everstep.data import nest
from everstep.errors import UsageError
from everstep.loop import Controller
from everstep.run.record import Run
from everstep.task.initial import Report
from everstep.task.optim import find_average


def restore_or_initialize(
    controller: Controller, initialize: Callable[..., Any], run: Run, say: Callable[[str], None], step: int | None
) -> bool:
    """Restores a checkpoint; in a run without one that trains, sets the model's initial weights.

    Args:
      controller: The loop.
      initialize: Sets the weights of a model; returns where they came from.
      run: The run, which records that.
      say: Called with lines that report it.
      step: The checkpoint's step; None for the newest.

    Returns:
      Whether a checkpoint was restored.

    Raises:
      UsageError: All checkpoints are damaged, or there is none to evaluate.
    """
    if controller.restore_checkpoint(step) is not None:
        return True
    controller.checkpointer.raise_if_all_damaged()
    trainer = controller.trainer
    if trainer is None:
        reason = f"there is no checkpoint to evaluate in {str(run.directory)!r}"
        raise UsageError(reason, remedy="train first, or check --model-dir")
    run.record["initial_weights"] = _reported(initialize(trainer.model), say)
    if (average := find_average(trainer.optimizer)) is not None:
        average.start()
    trainer.engine.pull()
    for report in run.record["initial_weights"]:
        report["sha256"] = weights_digest(trainer.engine.state())
    return False


def _reported(reports: Any, say: Callable[[str], None]) -> list[dict[str, Any]]:
    """Prints where initial weights came from, and returns it for the record; `reports` is one, several, or None.

    Incomplete files are not printed: the code that read them has warned already.
    """
    listed = [report for report in nest.flatten([reports]) if isinstance(report, Report)]
    for report in listed:
        for line in report.lines() if report.is_complete else ():
            say(line)
    return [report.as_dict() for report in listed]
