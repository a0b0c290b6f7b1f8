"""Signals that stop a run: a handler sets a flag, and the loop checks the flag where it can save.

Nothing is saved inside a handler: the state may be in the middle of a step. The loop saves, while the exception makes
it leave: `loop/controller.py`, `Controller._save_before_exit`.
"""

import atexit
import contextlib
import os
import signal
import threading
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from everstep.errors import UsageError, nearest

_ALWAYS = (signal.SIGTERM, signal.SIGINT)
# Sent by schedulers before the end. SIGTERM is among them: listed as extra, it ends with the requeue exit code, too.
_NAMES = ("HUP", "QUIT", "USR1", "USR2", "ALRM", "XCPU", "PWR", "TERM")
_EXTRA = {name: getattr(signal, f"SIG{name}") for name in _NAMES if hasattr(signal, f"SIG{name}")}

_HOOK = "hook"

STOPPED_ITSELF = 3
"""The exit code of a run that a hook of its own has stopped: whoever starts runs again does not start this one."""


class Interrupted(SystemExit):
    """A stop was requested. The loop saves its state while this leaves it: the same command resumes from there.

    It is not an `Exception`, so that a user's `except Exception` does not catch it; uncaught, it ends Python with its
    exit code and without a traceback.

    Attributes:
      reason: `SIGTERM`, or the text of a preemption notice.
      exit_code: The exit code of the process.
      saved: The step from which the same command resumes; None if it starts anew.
      keeps: Whether the run has a directory to resume from.
      announced: Whether its text has been shown to the user.
    """

    saved: int | None = None
    keeps = True
    announced = False

    def __init__(self, reason: str, exit_code: int) -> None:
        super().__init__(reason)
        self.reason = reason
        self.exit_code = exit_code
        self.code = exit_code  # what Python itself reads

    @property
    def text(self) -> str:
        """The reason, and where the next attempt resumes."""
        if not self.keeps:
            return f"{self.reason}: nothing is kept without model_dir=…, a directory to resume from"
        if self.saved is None:
            return f"{self.reason}: nothing is saved yet; the same command starts anew"
        return f"{self.reason}: the state is saved at step {self.saved}; the same command resumes from there"


@contextlib.contextmanager
def as_python_interrupts() -> Iterator[None]:
    """Inside the block a Ctrl-C, after the state is saved, raises KeyboardInterrupt, as Python's callers expect."""
    try:
        yield
    except Interrupted as interrupted:
        if interrupted.exit_code != 128 + signal.SIGINT:
            raise
        ended = KeyboardInterrupt(*([] if interrupted.announced else [interrupted.text]))
        vars(ended).update(vars(interrupted))  # what is saved, and whether it was announced
        raise ended from None


class Signals:
    """While the block runs, SIGTERM and SIGINT set a flag instead of ending the process.

    Example:
      with Signals(extra=["USR1"], requeue_exit_code=85) as signals:
          ...
          if signals.reason:
              save()
              raise signals.interrupted()

    The first signal counts. Further ones only print how to end the process at once, and do nothing while the
    interpreter ends. Outside the main thread Python cannot handle signals: there the block changes nothing.

    Args:
      extra: Names of further signals, such as `USR1` or `SIGUSR2`.
      requeue_exit_code: The exit code after one of those signals, or after a preemption notice, so that a scheduler
        starts the run again; None: 128 + the signal's number, for a notice that of SIGTERM. After the request of a
        hook the exit code is always `STOPPED_ITSELF`.

    Attributes:
      received: The number of the signal that requested a stop, or None.
      reason: Its name, the text of a preemption notice, or what a hook said; None as long as no stop is requested.
      by_hook: Whether a hook of the run requested it, such as `StopAt`.

    Raises:
      UsageError: There is no such signal, or the exit code has another meaning.
    """

    def __init__(self, extra: Iterable[str] = (), requeue_exit_code: int | None = None) -> None:
        self.received: int | None = None
        self.reason: str | None = None
        self.by_hook = False
        self._extra = frozenset(signal_number(name) for name in extra)
        self._requeue_exit_code = _checked(requeue_exit_code)
        self._former: dict[int, Any] = {}

    def request(self, reason: str, by_hook: bool = False) -> None:
        """Requests a stop for `reason`; a preemption watcher calls it in its own thread."""
        if self.reason is None:
            self.reason, self.by_hook = reason, by_hook

    def as_text(self) -> str:
        """Returns the request for other processes, which `adopt` it."""
        by = _HOOK if self.by_hook else "" if self.received is None else int(self.received)
        return f"{by}:{self.reason}"

    def adopt(self, request: str) -> None:
        """Takes over the request of another process, with its reason and exit code."""
        by, _, reason = request.partition(":")
        if self.reason is None:
            self.received, self.reason, self.by_hook = int(by) if by.isdecimal() else None, reason, by == _HOOK

    def interrupted(self) -> Interrupted:
        """Returns the exception that ends the loop, which saves the state while it leaves."""
        return Interrupted(self.reason or "no stop was requested", self._exit_code())

    def __enter__(self) -> "Signals":
        if threading.current_thread() is threading.main_thread():
            _active.append(self)
            for number in {*_ALWAYS, *self._extra}:
                self._former[number] = signal.signal(number, self._handle)
        return self

    def __exit__(self, *exception: object) -> None:
        if self in _active:
            _active.remove(self)
            self._restore()
            if self.received is not None:
                atexit.register(_ignore, list(self._former))

    def _handle(self, number: int, frame: object) -> None:
        if self.reason is None:
            self.received, self.reason = number, signal.Signals(number).name
        else:
            _say(
                f"everstep: {signal.Signals(number).name}: the state is being saved already ({self.reason}); "
                f"kill -9 {os.getpid()} ends it at once, and the newest checkpoint stays good"
            )

    def _restore(self) -> None:
        for number, former in self._former.items():
            signal.signal(number, signal.SIG_DFL if former is None else former)  # None: not set from Python

    def _exit_code(self) -> int:
        if self.by_hook:
            return STOPPED_ITSELF
        usual = 128 + (signal.SIGTERM if self.received is None else self.received)
        requeue = self.received is None or self.received in self._extra
        return self._requeue_exit_code if requeue and self._requeue_exit_code is not None else usual


@contextlib.contextmanager
def signals_handled(numbers: Iterable[int], handler: Callable[[int, Any], Any]) -> Iterator[None]:
    """Inside the block `handler` answers these signals; afterwards those that did before.

    Python handles signals in the main thread only: in any other one the block changes nothing.
    """
    main = threading.current_thread() is threading.main_thread()
    former = {number: signal.signal(number, handler) for number in numbers} if main else {}
    try:
        yield
    finally:
        for number, before in former.items():
            signal.signal(number, signal.SIG_DFL if before is None else before)  # None: not set from Python


def _ignore(numbers: Iterable[int]) -> None:
    """Ignores signals that would end the process, while the interpreter ends: the exit code stays what it is."""
    for number in numbers:
        if signal.getsignal(number) == signal.SIG_DFL:
            signal.signal(number, signal.SIG_IGN)


_active: list[Signals] = []


def _restore_in_fork() -> None:
    """Restores the handlers in a forked data worker, which has nothing to save and must end on a signal.

    Ctrl-C at the terminal reaches workers, too, but the run needs them until it has saved: they ignore SIGINT.
    """
    for signals in reversed(_active):
        signals._restore()
    if _active:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
    _active.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_restore_in_fork)


def signal_number(name: str) -> int:
    """Returns the number of a signal that may stop a run: `USR1`, `SIGUSR1` and `usr1` are the same.

    Raises:
      UsageError: There is none of that name, or it has another purpose.
    """
    short = str(name).strip().upper().removeprefix("SIG")
    if short not in _EXTRA:
        raise UsageError("not a signal that can stop a run", received=name, remedy=nearest(short, _EXTRA))
    return int(_EXTRA[short])


def _checked(exit_code: int | None) -> int | None:
    if exit_code is not None and not 4 <= exit_code <= 255:
        raise UsageError(
            "must be from 4 to 255 (0 is done, 1 failed, 2 bad input, 3 stopped by itself)",
            key="runtime.requeue_exit_code",
            received=exit_code,
        )
    return exit_code


def _say(line: str) -> None:
    """Bypasses Python's buffers: the handler may have interrupted a write to them."""
    with contextlib.suppress(OSError):
        os.write(2, f"{line}\n".encode(errors="replace"))
