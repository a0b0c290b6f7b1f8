"""What protects a run while it trains: the lock, the signals, the preemption notices, the heartbeat."""

import contextlib
from pathlib import Path
from typing import Any

from everstep import storage
from everstep.run import preemption
from everstep.run.heartbeat import last_beat
from everstep.run.launcher import announce
from everstep.run.lock import RunLock
from everstep.run.signals import Interrupted, Signals


class Guard:
    """While the block runs, this process holds the directory, and signals and preemption notices are stop requests.

    Example:
      with Guard(directory, params.runtime) as guard:
          controller = Controller(…, stop_requested=guard.stop_requested)

    Attributes:
      last_beat: The last heartbeat of the attempt before this one: its step, and when that was; None for none.

    Args:
      directory: The run directory; created if it does not exist.
      runtime: The runtime section: `stop_signals`, `requeue_exit_code`, `preemption_notice`.
    """

    def __init__(self, directory: Path, runtime: Any) -> None:
        self._directory, self._runtime = directory, runtime
        self._signals = Signals(runtime.stop_signals, runtime.requeue_exit_code)
        self._lock = RunLock(directory)
        self._stack = contextlib.ExitStack()
        self.last_beat: tuple[int, float] | None = None

    def __enter__(self) -> "Guard":
        storage.prepare_directory(self._directory)
        with contextlib.ExitStack() as stack:
            stack.enter_context(self._lock)
            self.last_beat = last_beat(self._directory)
            announce(self._directory, self._runtime.requeue_exit_code)
            stack.enter_context(self._signals)
            if self._runtime.preemption_notice:
                notices = preemption.watcher(self._runtime.preemption_notice)
                notices.start(self._signals.request)
                stack.callback(notices.stop)
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *exception: object) -> None:
        self._stack.close()

    def keep_going(self, step: int) -> bool:
        """Writes a heartbeat; returns whether training continues after `step`, because no stop is requested."""
        self._lock.beat(step)
        return self._signals.reason is None

    def stop_requested(self) -> Interrupted | None:
        """Returns what to raise when the state is saved, if a stop is requested."""
        return self._signals.interrupted() if self._signals.reason is not None else None


class NoGuard:
    """For modes that only read the run directory: no lock, and no stop requests."""

    last_beat = None

    def keep_going(self, step: int) -> bool:
        """Returns True."""
        return True

    def stop_requested(self) -> None:
        """Returns None."""
