"""Log records as plain lines on standard error: the message alone, whatever other packages do to the root logger.

Python prints warnings like that as long as no logger has a handler. absl, which Keras, Orbax and TensorFlow log with,
gives the root logger a handler with its first record. From then on every line begins with `WARNING:everstep.…`.
"""

import contextlib
import logging
import re
from collections.abc import Iterator

from everstep.notebook import people_stream

_COLOUR = re.compile(r"\x1b\[[0-9;]*m")


def without_colours(text: str) -> str:
    """Returns a text without the colours that Keras gives to shapes and layers."""
    return _COLOUR.sub("", text)


def print_plain_lines() -> None:
    """Makes log records of this process plain lines, unless the root logger has handlers already."""
    root = logging.getLogger()
    if not root.handlers:
        root.addHandler(_PlainLines(logging.WARNING))


@contextlib.contextmanager
def handlers_kept() -> Iterator[None]:
    """Inside the block no package adds a handler to a root logger without one: a stand-in is removed at the end.

    So lines stay plain, and a later `logging.basicConfig` of the user's works.
    """
    root, stand_in = logging.getLogger(), _PlainLines(logging.WARNING)
    if root.handlers:
        yield
        return
    root.addHandler(stand_in)
    try:
        yield
    finally:
        root.removeHandler(stand_in)


class _PlainLines(logging.Handler):
    """Writes messages to what `sys.stderr` is at that moment, as Python does without handlers; not red in notebooks."""

    def emit(self, record: logging.LogRecord) -> None:
        """Writes a record that no other handler has taken; a closed standard error is no reason to fail."""
        if _has_handlers(logging.getLogger(record.name)):
            return
        try:
            print(without_colours(self.format(record)), file=people_stream(), flush=True)
        except (OSError, ValueError):
            pass
        except Exception:  # arguments that do not fit the message
            self.handleError(record)


def _has_handlers(logger: logging.Logger | None) -> bool:
    """Whether a logger, or one above it but the root, has a handler."""
    while logger is not None and logger.parent is not None:
        if logger.handlers:
            return True
        logger = logger.parent
    return False
