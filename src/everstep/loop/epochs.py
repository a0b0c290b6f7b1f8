"""The outer loop of `everstep.fit`: windows are epochs, and Keras callbacks look on."""

import logging
from typing import Any

from everstep.loop.controller import Controller
from everstep.loop.keras_callbacks import KerasCallbacks
from everstep.types import Logs

logger = logging.getLogger(__name__)


class EpochController(Controller):
    """A controller that calls Keras callbacks.

    Args:
      callbacks: They.
      keep: Whether checkpoints are kept at all.
      **kwargs: As for `Controller`.
    """

    def __init__(self, *, callbacks: KerasCallbacks, keep: bool, **kwargs: Any) -> None:
        super().__init__(**(kwargs if keep else {**kwargs, "checkpointer": None}))
        self.callbacks = callbacks
        self.train_actions.append(self._after_training)
        self.eval_actions.append(self._after_evaluation)

    def _train_until(self, target: int, *args: Any, **kwargs: Any) -> Logs:
        if self._is_over(target):
            return {}
        self._watch_steps()
        self._watch_evaluation()
        self.trainer.engine.push()
        self.callbacks.begin(*divmod(self.step, self.callbacks.steps))
        self.trainer.engine.pull()
        return super()._train_until(target, *args, **kwargs)

    def _watch_steps(self) -> None:
        if not self.callbacks.single_steps:
            return
        names = ", ".join(self.callbacks.single_steps)
        logger.warning("running single steps: %s wants to be called at every batch", names)
        self.trainer.step_by_step()
        report = self.trainer.after_call
        self.trainer.after_call = lambda step: report(step) and self._after_step(step)

    def _watch_evaluation(self) -> None:
        if not self.callbacks.single_evaluations:
            return
        names = ", ".join(self.callbacks.single_evaluations)
        logger.warning("evaluating in single steps: %s wants to be called at every batch", names)
        self.trainer.around_validation = self._before_evaluation_step, self._after_evaluation_step

    def _before_evaluation_step(self, done: int) -> None:
        self.trainer.engine.push()
        self.callbacks.begin_test_batch(done)
        self.trainer.engine.pull()

    def _after_evaluation_step(self, done: int) -> bool:
        self.trainer.engine.push()
        self.callbacks.end_test_batch(done - 1, self.trainer.engine.read("validation"))
        self.trainer.engine.pull()
        return True

    def _after_step(self, step: int) -> bool:
        """Shows one step to the callbacks; False ends the epoch here, as Keras would."""
        engine, steps = self.trainer.engine, self.callbacks.steps
        engine.push()
        self.callbacks.end_batch((step - 1) % steps, engine.read("train"))
        if step % steps and not self.callbacks.model.stop_training:
            self.callbacks.begin_batch(step % steps)
        engine.pull()
        self._stop_if_told()
        return not self.stopped

    def _after_training(self, logs: Any) -> None:
        self.callbacks.after_training(logs)
        self._stop_if_told()

    def _after_evaluation(self, logs: Any) -> None:
        self.callbacks.after_evaluation(logs)
        self._stop_if_told()

    def _stop_if_told(self) -> None:
        if self.callbacks.model.stop_training:
            self.stop("a callback set model.stop_training")
