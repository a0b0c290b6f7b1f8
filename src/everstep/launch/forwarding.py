"""Signals that the supervisor is sent are meant for what it runs: each goes on to it, once."""

import math
import signal
import threading
import time
from typing import Any

from everstep.launch.child import Child

_NAMES = ("SIGTERM", "SIGINT", "SIGHUP", "SIGUSR1", "SIGUSR2")
_ENDING = {signal.SIGTERM, signal.SIGINT}
_OUTLIVED = 60.0


class Forwarding:
    """While the block runs, signals go on to the child there is, or to the next one.

    A signal that this process was started to ignore, as `nohup` does with SIGHUP, stays ignored. Outside the main
    thread Python cannot handle signals, and the block changes nothing.
    """

    def __init__(self) -> None:
        self._received: list[tuple[int, float]] = []  # with the times; handlers only ever append
        self._counts_from = -math.inf
        self._child: Child | None = None
        self._waiting: list[int] = []
        self._former: dict[int, Any] = {}

    def attach(self, child: Child) -> None:
        """Makes `child` the one that signals go to, beginning with those that came while it was starting."""
        self._child = child
        while self._waiting:
            child.send(self._waiting.pop(0))

    def detach(self) -> None:
        """Keeps signals till there is a child again; those that the dead one had long outlived are forgotten."""
        self._child = None
        self._counts_from = time.monotonic() - _OUTLIVED

    def asked_to_end(self, exit_code: int | None = None) -> signal.Signals | None:
        """Returns the signal for which a child is not to be started again; None if there is none.

        SIGTERM and SIGINT ask the child to end. The others may mean anything: one that it lived on with for a minute
        was no such request, unless it ended with the very exit code of that signal, after a long save.

        Args:
          exit_code: What the child ended with, where one has.
        """
        for number, at in self._received:
            if number in _ENDING or at >= self._counts_from or exit_code == 128 + number:
                return signal.Signals(number)
        return None

    def sleep(self, seconds: float) -> None:
        """Sleeps, but not beyond a signal."""
        deadline = time.monotonic() + seconds
        while self.asked_to_end() is None and (left := deadline - time.monotonic()) > 0:
            time.sleep(min(0.05, left))

    def __enter__(self) -> "Forwarding":
        if threading.current_thread() is threading.main_thread():
            for number in (getattr(signal, name) for name in _NAMES if hasattr(signal, name)):
                if signal.getsignal(number) not in (signal.SIG_IGN, None):
                    self._former[number] = signal.signal(number, self._handle)
        return self

    def __exit__(self, *exception: object) -> None:
        for number, former in self._former.items():
            signal.signal(number, former)

    def _handle(self, number: int, frame: object) -> None:
        self._received.append((number, time.monotonic()))
        if self._child is None:
            self._waiting.append(number)
        else:
            self._child.send(number)
