"""A constant learning rate that was changed between two attempts: the one that goes on is told of it here."""

from typing import Any

from everstep.types import State


class LearningRate:
    """The learning rate that an optimizer was made with; a part of a run's state as in `everstep.loop.extra_state`.

    The rate that training has come to, which callbacks may have lowered, is a variable, and a checkpoint brings it
    back. That would silently undo a rate that somebody has changed since. So a checkpoint says, too, what the rate
    was to begin with: where that is another one now, the new one is used.

    Args:
      trainer: Has the `optimizer` and the `engine`.
      told: The rate the optimizer was made with; None for a schedule, which is no variable.
    """

    name = "learning_rate"

    def __init__(self, trainer: Any, told: float | None) -> None:
        self._trainer, self._told = trainer, told

    def get(self) -> tuple[State, dict[str, Any]]:
        """Returns no arrays, and the rate."""
        return {}, {"told": self._told} if self._told is not None else {}

    def prepare(self, meta: dict[str, Any]) -> None:
        """Has nothing to check."""

    def set(self, arrays: State, meta: dict[str, Any]) -> None:
        """Uses the rate that the optimizer was made with, if a checkpoint was saved under another one."""
        if self._told is None or meta.get("told", self._told) == self._told:
            return
        self._trainer.engine.push()
        self._trainer.optimizer.learning_rate = self._told
        self._trainer.engine.pull()
