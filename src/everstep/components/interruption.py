"""Asked to end where there is no step to save: while a run starts, exports or evaluates."""

import contextlib
import signal
import threading
from collections.abc import Callable, Iterator
from typing import NoReturn

from everstep.run.signals import Interrupted


@contextlib.contextmanager
def ends_when_asked(saved: Callable[[], int | None]) -> Iterator[None]:
    """Inside the block SIGTERM ends the process as Ctrl-C would: what is half written is cleared away on the way.

    While a run trains, the loop listens itself, and saves first. Outside the main thread Python cannot handle
    signals: the block then changes nothing.

    Args:
      saved: Returns the step from which the same command goes on; None where it starts anew.

    Raises:
      Interrupted: Somebody asked; with the exit code 143.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    former = signal.signal(signal.SIGTERM, _leave)
    try:
        yield
    except Interrupted as interrupted:
        interrupted.saved = saved() if interrupted.saved is None else interrupted.saved
        raise
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL if former is None else former)


def _leave(number: int, frame: object) -> NoReturn:
    signal.signal(number, signal.SIG_IGN)  # once is enough: what follows clears away
    raise Interrupted(signal.Signals(number).name, 128 + number)
