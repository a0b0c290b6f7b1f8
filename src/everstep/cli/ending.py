"""The end of a command that trains: what it prints last, and how it is started again when it dies."""

import os
import sys
from collections.abc import Sequence


def print_last(text: str) -> None:
    """Prints; nobody may read it any more (`… | head`), but the run is done."""
    try:
        print(text, flush=True)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # else Python complains when it ends


def unsupervised(words: Sequence[str]) -> list[str]:
    """Returns this very command line as the supervisor is to start it: of an option given twice, the last counts."""
    end = words.index("--") if "--" in words else len(words)
    return [sys.executable, "-m", "everstep", *words[:end], "--max-restarts=0", *words[end:]]
