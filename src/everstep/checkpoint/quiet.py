"""Keeps orbax from talking over the user's own log.

Orbax logs each save in a dozen lines through absl, and absl, when it logs while the root logger has no
handler, gives it one for good: a later `logging.basicConfig` of the user's would then do nothing.
"""

import contextlib
import logging
import os
import sys
from collections.abc import Callable, Iterator
from typing import Any

import absl.logging


class _NotOrbax(logging.Filter):
    """Drops what orbax says: errors are raised as well. Other users of absl's logger are not its business."""

    def filter(self, record: logging.LogRecord) -> bool:
        return record.levelno >= logging.CRITICAL or f"{os.sep}orbax{os.sep}" not in record.pathname


class _NotGivenUp(logging.Filter):
    """Drops what asyncio says of orbax's tasks that were given up: of a save that fails, one error is raised."""

    def filter(self, record: logging.LogRecord) -> bool:
        return not any(word in record.getMessage() for word in (f"{os.sep}orbax{os.sep}", "orbax-checkpoint-tmp"))


_filter, _late = _NotOrbax(), _NotGivenUp()


def _quiet_hook(former: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Wraps `sys.unraisablehook`: tensorstore tells asyncio's loop that it is done, which may be closed by then."""

    def hook(unraisable: Any) -> None:
        if not (isinstance(unraisable.exc_value, RuntimeError) and "Event loop is closed" in str(unraisable.exc_value)):
            former(unraisable)

    hook.is_quiet = True  # type: ignore[attr-defined]
    return hook


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Orbax is not heard, and the root logger ends as it began."""
    absl.logging.get_absl_logger().addFilter(_filter)
    logging.getLogger("asyncio").addFilter(_late)
    if not getattr(sys.unraisablehook, "is_quiet", False):
        sys.unraisablehook = _quiet_hook(sys.unraisablehook)
    root = logging.getLogger()
    stand_in = logging.lastResort or logging.NullHandler()
    with contextlib.ExitStack() as stack:
        if not root.handlers:
            root.addHandler(stand_in)
            stack.callback(root.removeHandler, stand_in)
        yield
