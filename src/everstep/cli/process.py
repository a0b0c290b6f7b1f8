"""This process: its command line in a new process, and its end on SIGTERM."""

import contextlib
import signal
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NoReturn

from everstep.checkpoint import newest_step
from everstep.run import Interrupted, signals_handled


def without_restarts(words: Sequence[str]) -> list[str]:
    """Returns this command line as the supervisor starts it: of an option given twice, the last counts."""
    return repeated_command(words, "--max-restarts=0")


def repeated_command(words: Sequence[str], option: str) -> list[str]:
    """Returns the command that runs this command line in a new process, with one more option."""
    end = words.index("--") if "--" in words else len(words)
    return [sys.executable, "-m", "everstep", *words[:end], option, *words[end:]]


@contextlib.contextmanager
def exit_on_sigterm(run_dir: Path | None = None) -> Iterator[None]:
    """Raises `Interrupted` on SIGTERM inside the block, so that half-written files are removed.

    For a run that starts, exports or evaluates. While it trains, the loop handles signals itself, and saves first.
    Python handles signals in the main thread only: in any other one the block changes nothing.

    Args:
      run_dir: The directory whose newest checkpoint the same command resumes from; None if it starts from the
        beginning.

    Raises:
      Interrupted: SIGTERM was received; the exit code is 143.
    """
    with signals_handled((signal.SIGTERM,), _interrupt):
        try:
            yield
        except Interrupted as interrupted:
            if interrupted.saved is None and run_dir is not None:
                interrupted.saved = newest_step(run_dir)
            raise


def _interrupt(number: int, frame: object) -> NoReturn:
    signal.signal(number, signal.SIG_IGN)  # a second signal must not interrupt the cleaning up
    raise Interrupted(signal.Signals(number).name, 128 + number)
