"""How a program that trains ends: what it says of the error that ends it, once, and its exit code.

0 done, 1 failed, 2 bad input, 130 interrupted, 143 asked to end (or the requeue exit code). Bad input and failed runs
are one text. An error of the user's own code shows where it happened there; `EVERSTEP_TRACEBACK=1`, or `--traceback`
on the command line, shows every frame of any error.
"""

import os
import sys
import traceback
from collections.abc import Iterable, Sequence

from everstep import redaction
from everstep.errors import TrainingError, UsageError, own_frames, plain_text, wants_traceback
from everstep.run.signals import Interrupted

OPTION = "--traceback"


def without_option(words: Sequence[str]) -> list[str]:
    """Returns a command line without `--traceback`, which from now on holds for this process and its children."""
    end = words.index("--") if "--" in words else len(words)
    if OPTION in words[:end]:
        os.environ["EVERSTEP_TRACEBACK"] = "1"
    return [*(word for word in words[:end] if word != OPTION), *words[end:]]


def exit_code(error: BaseException, name: str = "everstep: ") -> int:
    """Says on standard error what has ended a program; returns the exit code.

    Args:
      error: What was raised.
      name: What each line begins with.
    """
    expected = isinstance(error, UsageError | TrainingError)
    interrupted = isinstance(error, Interrupted | KeyboardInterrupt)
    if wants_traceback() and not interrupted:
        print(redaction.text("".join(traceback.format_exception(error))), end="", file=sys.stderr)
    if interrupted:
        _print_interruption(error, name)
        return error.exit_code if isinstance(error, Interrupted) else 130
    if expected:
        print(f"{name}error: {redaction.text(str(error))}", file=sys.stderr)
        return 1 if isinstance(error, TrainingError) else 2
    if not wants_traceback():
        for line in _unexpected(error, name):
            print(redaction.text(line), file=sys.stderr)
    return 1


def _print_interruption(error: BaseException, name: str) -> None:
    if getattr(error, "announced", False):
        return
    if isinstance(error, Interrupted):
        text = error.text
    else:
        text = str(error) or "interrupted; run the same command again to resume"
    print(f"{name}{redaction.text(text)}", file=sys.stderr)


def _unexpected(error: BaseException, name: str) -> Iterable[str]:
    """Yields what happened, and where in the user's code; the whole traceback where that took no part in it."""
    frames = own_frames(error)
    if not frames:
        yield "".join(traceback.format_exception(error)).rstrip()
        return
    yield f"{name}error: {type(error).__name__}: {plain_text(error)}"
    yield f"Traceback of your own code ({OPTION}, or EVERSTEP_TRACEBACK=1, shows all):"
    yield "".join(traceback.format_list(frames)).rstrip()
