"""How a training program ends: the message of the error that ended it, and its exit code.

0 done, 1 failed, 2 bad input or bad data, 3 stopped by a hook of the run, 130 interrupted, 143 stopped by SIGTERM (or
the requeue exit code). Bad input and failed runs print one message. An error in the user's code shows where it happened
there; `EVERSTEP_TRACEBACK=1`, or `--traceback` on the command line, shows every frame of any error.
"""

import os
import sys
import traceback
from collections.abc import Callable, Iterable, Sequence

from everstep import redaction
from everstep.errors import TrainingError, UsageError, own_frames, plain_text, wants_traceback
from everstep.log_lines import print_plain_lines
from everstep.run.signals import Interrupted

OPTION = "--traceback"


def without_option(words: Sequence[str]) -> list[str]:
    """Returns a command line without `--traceback`, after applying it to this process and its children."""
    end = words.index("--") if "--" in words else len(words)
    if OPTION in words[:end]:
        os.environ["EVERSTEP_TRACEBACK"] = "1"
    return [*(word for word in words[:end] if word != OPTION), *words[end:]]


def run_program(main: Callable[[], int | None], words: Sequence[str] = ()) -> int:
    """Runs a program to its end; returns its exit code, and prints the error that has ended it.

    Its log records are plain lines, and those, warnings and the error have no secrets in them.

    Args:
      main: The program; it returns its exit code, or None for 0.
      words: Its command line, whose secrets are learned.
    """
    redaction.guard_process()
    redaction.learn(words)
    print_plain_lines()
    try:
        return main() or 0
    except (Exception, KeyboardInterrupt, Interrupted) as error:
        return exit_code(error)


def exit_code(error: BaseException, name: str = "everstep: ") -> int:
    """Prints the error that has ended a program to standard error; returns the exit code.

    Args:
      error: The exception that was raised.
      name: The prefix of each line.
    """
    interrupted = isinstance(error, Interrupted | KeyboardInterrupt)
    if wants_traceback() and not interrupted:
        print(redaction.text("".join(traceback.format_exception(error))), end="", file=sys.stderr)
    if interrupted:
        print_interruption(error, name)
        return error.exit_code if isinstance(error, Interrupted) else 130
    if isinstance(error, UsageError | TrainingError):
        if not getattr(error, "announced", False):
            print(f"{name}error: {redaction.text(str(error))}", file=sys.stderr, flush=True)
        return error.exit_code
    if not wants_traceback():
        for line in _unexpected(error, name):
            print(redaction.text(line), file=sys.stderr)
    return 1


def reported_error(lines: Iterable[str], name: str = "everstep: ") -> str:
    """Returns the error that a program has reported by `exit_code`, from the lines it wrote; else the last line.

    Below an error of the user's code is where it happened, with lines that only mark a column: `^^^^`.
    """
    found = [line.strip() for line in lines if line.strip(" ~^\t\r\n")]
    errors = [line.removeprefix(f"{name}error: ") for line in found if line.startswith(f"{name}error: ")]
    return [*found[-1:], *errors][-1] if found else ""


def print_interruption(error: BaseException, name: str) -> None:
    """Prints why a program was stopped, unless the run has said so already."""
    if getattr(error, "announced", False):
        return
    if isinstance(error, Interrupted):
        text = error.text
    else:
        text = str(error) or "interrupted; run the same command again to resume"
    print(f"{name}{redaction.text(text)}", file=sys.stderr)


def _unexpected(error: BaseException, name: str) -> Iterable[str]:
    """Yields the error, and where it happened in the user's code; the whole traceback if that is not involved."""
    frames = own_frames(error)
    if not frames:
        yield "".join(traceback.format_exception(error)).rstrip()
        return
    yield f"{name}error: {type(error).__name__}: {plain_text(error)}"
    yield f"Traceback of your own code ({OPTION}, or EVERSTEP_TRACEBACK=1, shows all):"
    yield "".join(traceback.format_list(frames)).rstrip()
