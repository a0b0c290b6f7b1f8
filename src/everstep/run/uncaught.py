"""How a script ends when nobody has caught an error of this package: with its message, not with a traceback.

`fit` in a script is what a command is on the command line, where bad input and Ctrl-C end with one line. Exceptions
stay what they are: `except` catches them as ever, and the exit code is Python's.
"""

import sys
import types

from everstep.errors import UsageError, own_frames, wants_traceback
from everstep.run.exit_codes import print_interruption


def shorten_uncaught_errors() -> None:
    """From now on, uncaught bad input and a Ctrl-C after which all is saved end a script with one line.

    Nothing is changed where somebody reads along, as in a console or a notebook, where another package shows errors, or
    where tracebacks are asked for.
    """
    is_interactive = hasattr(sys, "ps1") or sys.flags.interactive
    if sys.excepthook is sys.__excepthook__ and not is_interactive and not wants_traceback():
        sys.excepthook = _show


def _show(kind: type[BaseException], error: BaseException, frames: types.TracebackType | None) -> None:
    if isinstance(error, KeyboardInterrupt) and hasattr(error, "saved"):  # raised by `signals.as_python_interrupts`
        print_interruption(error, "everstep: ")
    elif isinstance(error, UsageError):
        places = own_frames(error)
        where = f"\n  {places[-1].filename}, line {places[-1].lineno}" if places else ""
        print(f"everstep: error: {error}{where}", file=sys.stderr)
    else:
        sys.__excepthook__(kind, error, frames)
