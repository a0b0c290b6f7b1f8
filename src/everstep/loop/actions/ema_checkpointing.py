"""Averaged weights, written after each evaluation."""

from collections.abc import Mapping
from typing import Any, Literal

from everstep import storage
from everstep.errors import UsageError
from everstep.loop.actions.metrics import scalars
from everstep.loop.actions.weights import WeightsFolder, attempt, model_weights
from everstep.task.optim.ema import find_average


class EMACheckpointing:
    """Writes the model with its averaged weights, `<directory>/<step>/`; for runs whose optimizer keeps an average.

    Args:
      directory: The folder, usually `<model_dir>/ema_checkpoints`.
      trainer: Whose model.
      max_to_keep: How many of the last ones stay.
      failure: What to do where the disk does not take them: `stop`, or `continue` with those there are.

    Raises:
      UsageError: The optimizer averages nothing.
    """

    def __init__(
        self,
        directory: storage.PathLike,
        trainer: Any,
        max_to_keep: int = 1,
        failure: Literal["stop", "continue"] = "stop",
    ) -> None:
        if find_average(trainer.optimizer) is None:
            name = type(trainer.optimizer).__name__
            raise UsageError(
                f"received a trainer with {name}, which averages no weights",
                key="EMACheckpointing",
                remedy="set trainer.optimizer_config.ema, or remove the action",
            )
        if max_to_keep < 1:
            raise UsageError("must be at least 1", key="EMACheckpointing.max_to_keep", received=max_to_keep)
        self._folder, self._trainer = WeightsFolder(directory), trainer
        self._max_to_keep, self._failure = max_to_keep, failure

    def set_controller(self, controller: Any) -> None:
        """Receives the loop whose checkpoints are written meanwhile; `run_experiment` calls it."""
        self._folder.join(controller)

    def __call__(self, output: Mapping[str, Any]) -> None:
        """Writes the averaged weights of the step that was evaluated."""
        attempt(lambda: self._write(scalars(output)), "the averaged weights", self._failure)

    def _write(self, metrics: Mapping[str, Any]) -> None:
        step = self._trainer.global_step
        self._folder.write(step, model_weights(self._trainer), {"info": metrics}, metrics)
        # Later steps are those of an attempt that was killed; they come again.
        self._folder.keep([other for other in self._folder.steps() if other <= step][-self._max_to_keep :])

    def get_state(self) -> dict[str, Any]:
        """Returns nothing: the average itself is part of the optimizer's state."""
        return {}

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Has no state."""
