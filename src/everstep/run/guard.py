"""What guards a run while it trains: the lock, the signals, the preemption notices, the sign of life."""

import contextlib
from pathlib import Path
from typing import Any

from everstep import storage
from everstep.run import preemption
from everstep.run.heartbeat import last_beat
from everstep.run.lock import RunLock
from everstep.run.signals import Interrupted, Signals
from everstep.run.supervised import announce


class Guard:
    """While the block runs, the directory is this process's alone, and whoever wants the run to end only asks for it.

    Example:
      with Guard(directory, params.runtime) as guard:
          trainer.after_call = guard.go_on
          controller = Controller(…, asked=guard.asked)

    Attributes:
      last_beat: The last sign of life of the attempt before this one: its step, and when that was; None for none.

    Args:
      directory: The run directory; created if it is not there.
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

    def go_on(self, step: int) -> bool:
        """Gives a sign of life; returns whether training may go on after `step`."""
        self._lock.beat(step)
        return self._signals.reason is None

    def asked(self) -> Interrupted | None:
        """Returns what to raise when the state is saved, if somebody has asked the run to end."""
        return self._signals.interrupted() if self._signals.reason is not None else None


class NoGuard:
    """For modes that only look on: nobody is kept out, and nobody can ask for anything."""

    last_beat = None

    def go_on(self, step: int) -> bool:
        """Always."""
        return True

    def asked(self) -> None:
        """Nobody."""
