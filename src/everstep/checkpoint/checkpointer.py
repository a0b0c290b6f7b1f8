"""Saving and restoring what a run needs to resume."""

import abc
from collections.abc import Mapping
from typing import Any

from everstep.errors import TrainingError, UsageError
from everstep.types import State


class SaveError(TrainingError):
    """A state could not be written; those written before are as good as they were."""


class Checkpointer(abc.ABC):
    """Keeps states by step.

    The controller saves at the end of a loop, after the checks and the actions; the experiment restores once,
    before the first step. State and meta belong together: what must resume together is saved together.

    Example:
      checkpointer.save(100, engine.state(), {"epoch": 1, "stream": stream.state()})
      state, meta = checkpointer.restore()
    """

    @abc.abstractmethod
    def save(
        self,
        step: int,
        state: State,
        meta: dict[str, Any],
        metrics: Mapping[str, Any] | None = None,
        replace: bool = False,
    ) -> None:
        """Saves `state` and `meta` (plain JSON values) under `step`.

        Args:
          step: The step.
          state: Every array by key. It may be written after this returns: the caller must not change the arrays before
            `wait` has returned.
          meta: What else must resume with it.
          metrics: The evaluation of the step, by which the best checkpoints are selected.
          replace: Whether to replace what is saved under `step`; otherwise that stays.

        Raises:
          SaveError: This save, or one before it that was written meanwhile, failed.
        """

    @abc.abstractmethod
    def wait(self) -> None:
        """Waits until everything saved is durable.

        Raises:
          SaveError: It could not be written.
        """

    @abc.abstractmethod
    def restore(self, step: int | None = None) -> tuple[State, dict[str, Any]]:
        """Returns state and meta of `step`, of the latest when none is given, exactly as saved.

        Raises:
          UsageError: There is no such step; the message lists those there are.
        """

    @abc.abstractmethod
    def steps(self) -> list[int]:
        """Returns the steps that can be restored, in order."""

    def newest_meta(self) -> dict[str, Any]:
        """Returns the meta of the newest step alone; empty if there is none, or it cannot be read."""
        return self.restore()[1] if self.latest() is not None else {}

    def latest(self) -> int | None:
        """Returns the last step that can be restored, or None."""
        return max(self.steps(), default=None)

    def raise_if_all_damaged(self) -> None:
        """Refuses to start from scratch if there were checkpoints and all of them are damaged.

        Raises:
          TrainingError: All checkpoints are damaged.
        """
        return

    @abc.abstractmethod
    def close(self) -> None:
        """Ends saving; closing twice is fine."""


class NoopCheckpointer(Checkpointer):
    """Checkpoints switched off: nothing is saved, nothing can be restored."""

    def save(
        self,
        step: int,
        state: State,
        meta: dict[str, Any],
        metrics: Mapping[str, Any] | None = None,
        replace: bool = False,
    ) -> None:
        """Does nothing."""

    def wait(self) -> None:
        """Does nothing."""

    def restore(self, step: int | None = None) -> tuple[State, dict[str, Any]]:
        """Raises UsageError."""
        raise UsageError("there is nothing to restore: this run keeps no checkpoints")

    def steps(self) -> list[int]:
        """Returns an empty list."""
        return []

    def close(self) -> None:
        """Does nothing."""
