"""The interface for saving and restoring what a run needs to resume.

`orbax.py` implements it: it writes and verifies checkpoints, sets damaged ones aside, and prunes old ones.
"""

import abc
from collections.abc import Mapping
from typing import Any

from everstep.checkpoint.manifest import Base
from everstep.errors import TrainingError, UsageError
from everstep.types import OwnState, StoredState

BASE_KEY = "base"
"""The key in a restored meta for the base of a checkpoint: digest, name, number of variables."""


class SaveError(TrainingError):
    """A checkpoint could not be written; earlier ones are not affected."""


class Checkpointer(abc.ABC):
    """Keeps states by step.

    The controller saves at the end of a window, after the checks and the actions; the experiment restores once,
    before the first step. State and meta belong together: what must resume together is saved together.

    Example:
      checkpointer.save(100, engine.state(), {"epoch": 1, "stream": stream.state()})
      state, meta = checkpointer.restore()
    """

    keeps_base = False
    """Whether frozen weights can be saved once, by `save_base`; otherwise every state is saved as a whole."""

    @abc.abstractmethod
    def save(
        self,
        step: int,
        state: OwnState,
        meta: dict[str, Any],
        metrics: Mapping[str, Any] | None = None,
        replace: bool = False,
        base: Base | None = None,
    ) -> None:
        """Saves `state` and `meta` (plain JSON values) under `step`.

        Args:
          step: The number of training steps that are done.
          state: Every array by key, or the parts of it that this process has. It may be written after this returns: the
            caller must not change the arrays before `wait` has returned.
          meta: What else must be restored together with the state.
          metrics: The logs of the step's evaluation, by which the best checkpoints are selected.
          replace: Whether to replace an existing checkpoint of `step`; otherwise that one is kept.
          base: The frozen weights that are not in the state; passed only if `keeps_base`.

        Raises:
          SaveError: This save failed, or an earlier one that was still being written.
        """

    @abc.abstractmethod
    def wait(self) -> None:
        """Waits until everything saved is durable.

        Raises:
          SaveError: A save failed.
        """

    def has_base(self, base: Base) -> bool:
        """Returns whether these frozen weights were saved before; the same on every process of a run."""
        return False

    def save_base(self, base: Base, state: OwnState) -> None:
        """Saves frozen weights, which checkpoints refer to from now on; they are durable when it returns.

        Raises:
          SaveError: They cannot be written.
        """
        raise NotImplementedError

    @abc.abstractmethod
    def restore(self, step: int | None = None) -> tuple[StoredState, dict[str, Any]]:
        """Returns state and meta of `step`, by default of the latest, exactly as saved.

        A saved base is part of the state. Of a base that the task provides, only what is known of it is in the meta,
        under `BASE_KEY`: the caller compares.

        Raises:
          UsageError: There is no checkpoint of this step; `remedy` lists the existing ones.
        """

    @abc.abstractmethod
    def steps(self) -> list[int]:
        """Returns the steps that can be restored, in order."""

    def newest_meta(self) -> dict[str, Any]:
        """Returns only the meta of the newest step; empty if there is no checkpoint, or it cannot be read."""
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
        """Waits for the last save and stops saving; may be called twice."""


class NoopCheckpointer(Checkpointer):
    """Checkpoints switched off: nothing is saved, nothing can be restored."""

    def save(
        self,
        step: int,
        state: OwnState,
        meta: dict[str, Any],
        metrics: Mapping[str, Any] | None = None,
        replace: bool = False,
        base: Base | None = None,
    ) -> None:
        """Drops the state."""

    def wait(self) -> None:
        """Returns at once: nothing is being written."""

    def restore(self, step: int | None = None) -> tuple[StoredState, dict[str, Any]]:
        """Raises UsageError."""
        raise UsageError("this run keeps no checkpoints, so there is nothing to restore")

    def steps(self) -> list[int]:
        """Returns an empty list."""
        return []

    def close(self) -> None:
        """Has nothing to close."""
