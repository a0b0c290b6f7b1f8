"""Lines for people on standard error; in a notebook on standard output, which is not red there."""

import contextlib

from everstep import redaction
from everstep.notebook import people_stream
from everstep.tracking import wrapped


def print_line(line: str) -> None:
    """Prints a line, or a text of several, to standard error, or into the cell of a notebook, without secrets."""
    with contextlib.suppress(OSError, ValueError):  # a closed standard error does not stop training
        text = redaction.text(line)
        out = people_stream()
        print(text if "\n" in text else wrapped(text.split(" "), " ", out), file=out)
