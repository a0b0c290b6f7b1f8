"""The outer loop of a job: that of epochs, and the job's files follow each checkpoint."""

import logging
import math
from pathlib import Path
from typing import Any

from everstep.loop.epochs import EpochController
from everstep.loop.keras_callbacks import KerasCallbacks
from everstep.loop.learning_rate import LearningRate
from everstep.loop.plan import Plan
from everstep.training.job_files import JobFiles
from everstep.types import Logs

logger = logging.getLogger(__name__)


class JobController(EpochController):
    """Trains epochs, and keeps `job_meta.json`, `epochs/` and `logs/`.

    Args:
      callbacks: The user's.
      learning_rate: What the optimizer was made with; None for a schedule.
      **kwargs: As for `Controller`.
    """

    def __init__(self, *, callbacks: KerasCallbacks, learning_rate: float | None, **kwargs: Any) -> None:
        super().__init__(callbacks=callbacks, keep=True, **kwargs)
        self.saver.parts.append(LearningRate(self.trainer, learning_rate))
        self._files = JobFiles(_directory(self.checkpointer), self.checkpointer, callbacks)

    def _begin(self) -> None:
        super()._begin()
        self._files.begin()
        report = self.trainer.after_call

        def after_call(step: int) -> bool:
            self._files.catch_up()
            return report(step)

        self.trainer.after_call = after_call

    def _carry_out(self, plan: Plan) -> Logs:
        try:
            return super()._carry_out(plan)
        finally:
            self._files.close()

    def _after_training(self, logs: Any) -> None:
        super()._after_training(logs)
        self._files.epoch_ended(self.step)

    def _after_evaluation(self, logs: Any) -> None:
        super()._after_evaluation(logs)
        self._files.epoch_ended(self.step)
        self._warn_of(float(logs.get("validation_loss", 0.0)))

    def _warn_of(self, loss: float) -> None:
        """Says that an evaluation came to nothing: the job goes on, since what it has learned is sound."""
        if not math.isfinite(loss):
            epoch = max(self.callbacks.history.epoch, default=0)
            logger.warning("the validation loss is %s in epoch %d (the first is 0): look at valid_ds", loss, epoch)


def _directory(checkpointer: Any) -> Path:
    """Returns the run directory on this machine, whatever store it may be a copy of."""
    return Path(checkpointer.directory).parent
