"""Keeps orbax from talking over the user's own log.

Orbax logs each save in a dozen lines through absl, and absl, when it logs while the root logger has no
handler, gives it one for good: a later `logging.basicConfig` of the user's would then do nothing.
"""

import contextlib
import logging
import os
from collections.abc import Iterator

import absl.logging


class _NotOrbax(logging.Filter):
    """Drops what orbax says: errors are raised as well. Other users of absl's logger are not its business."""

    def filter(self, record: logging.LogRecord) -> bool:
        return record.levelno >= logging.CRITICAL or f"{os.sep}orbax{os.sep}" not in record.pathname


_filter = _NotOrbax()


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Orbax is not heard, and the root logger ends as it began."""
    absl.logging.get_absl_logger().addFilter(_filter)
    root = logging.getLogger()
    stand_in = logging.lastResort or logging.NullHandler()
    with contextlib.ExitStack() as stack:
        if not root.handlers:
            root.addHandler(stand_in)
            stack.callback(root.removeHandler, stand_in)
        yield
