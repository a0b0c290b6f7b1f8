"""Lines for people on standard error."""

import contextlib
import sys

from everstep import redaction
from everstep.tracking import wrapped


def print_line(line: str) -> None:
    """Prints a line, or a text of several, to standard error, without secrets."""
    with contextlib.suppress(OSError, ValueError):  # a closed standard error does not stop training
        text = redaction.text(line)
        print(text if "\n" in text else wrapped(text.split(" "), " ", sys.stderr), file=sys.stderr)
