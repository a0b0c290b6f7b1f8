"""The checkpoints of several processes that train one run: the first one writes them, all of them read them."""

import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from everstep.checkpoint.checkpointer import Checkpointer
from everstep.errors import UsageError
from everstep.gang import Gang
from everstep.types import State

VISIBLE_SECONDS = 60.0
"""How long a network file system may take to show a process what another one has written."""


class SharedCheckpointer(Checkpointer):
    """Gives every process the checkpoints of the first one; all make the same calls in the same order.

    Args:
      own: The checkpointer of this process, for the directory that all of them see.
      gang: The processes.
      directory: That directory.
    """

    def __init__(self, own: Checkpointer, gang: Gang, directory: Path) -> None:
        self._own, self._gang, self._directory = own, gang, directory
        self._steps = set(gang.share("the checkpoints", own.steps()))  # as the other processes know them

    def save(
        self,
        step: int,
        state: State,
        meta: dict[str, Any],
        metrics: Mapping[str, Any] | None = None,
        replace: bool = False,
    ) -> None:
        """Saves on the first process; the others hold the same state."""
        self._steps.add(step)
        if self._gang.is_first:
            self._own.save(step, state, meta, metrics, replace)

    def wait(self) -> None:
        """Waits on the first process, which writes."""
        self._own.wait()

    def restore(self, step: int | None = None) -> tuple[State, dict[str, Any]]:
        """Returns the same checkpoint on every process: the one that the first can read."""
        if self._gang.is_first:
            state, meta = self._own.restore(step)
            self._gang.share("the step to restore", meta["step"])
            return state, meta
        step = int(self._gang.share("the step to restore", None))
        require_visible(self._directory / str(step), self._gang)
        return self._own.restore(step)

    def newest_meta(self) -> dict[str, Any]:
        """Returns the meta of the newest checkpoint as the first process reads it."""
        found: dict[str, Any] = self._gang.share(
            "the newest checkpoint", self._own.newest_meta() if self._gang.is_first else None
        )
        return found

    def steps(self) -> list[int]:
        """Returns the steps on disk; on the other processes, those that were there or were saved since."""
        return self._own.steps() if self._gang.is_first else sorted(self._steps)

    def raise_if_all_damaged(self) -> None:
        """Refuses, on the first process, to start from scratch if all checkpoints are damaged."""
        if self._gang.is_first:
            self._own.raise_if_all_damaged()

    def close(self) -> None:
        """Closes the checkpointer of this process."""
        self._own.close()


def require_visible(path: Path, gang: Gang, is_new: Callable[[], bool] = lambda: True) -> None:
    """Waits until this process sees what the first one has written.

    Args:
      path: The file or directory.
      gang: The processes.
      is_new: Whether a file that exists is the one that was just written.

    Raises:
      UsageError: It does not: the directory is not shared.
    """
    end = time.monotonic() + VISIBLE_SECONDS
    while not (path.exists() and is_new()):
        if time.monotonic() > end:
            me, first = gang.members[gang.rank], gang.members[0]
            raise UsageError(
                f"{first} has written {str(path)!r}, but {me} does not see it",
                key="model_dir",
                remedy="use a directory on a file system that all machines share; for a run in a store, that is "
                "EVERSTEP_CACHE_DIR",
            )
        time.sleep(0.1)
