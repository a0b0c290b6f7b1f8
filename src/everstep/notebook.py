"""Notebooks: whether this process is the kernel of one, and where output for people goes there.

A notebook shows standard error in red, as if something had failed, and keeps every line in the saved file. So lines go
to standard output there, and what changes is one output of the cell, which is replaced in place.
"""

import contextvars
import importlib
import sys
import threading
from typing import Any, TextIO


def is_notebook() -> bool:
    """Returns whether this process is a notebook's kernel."""
    return _display() is not None


def people_stream() -> TextIO | None:
    """Returns where lines for people go: standard error; in a notebook standard output; None without either."""
    return sys.stdout if is_notebook() else sys.stderr


class CellOutput:
    """One output of the cell that creates this object; any thread may replace it."""

    def __init__(self) -> None:
        self._display = _display()
        self._context = contextvars.copy_context()  # in which the kernel finds the cell
        self._lock = threading.Lock()
        self._handle: Any = None

    @property
    def is_shown(self) -> bool:
        """Whether there is a cell to show it in."""
        return self._display is not None

    def show(self, data: dict[str, Any]) -> None:
        """Shows a value in place of the one before; does nothing outside a notebook.

        Args:
          data: The value in each form that it has, by media type: `text/html`, `text/plain`, `image/png`.
        """
        if self._display is not None:
            with self._lock:
                self._context.run(self._publish, data)

    def _publish(self, data: dict[str, Any]) -> None:
        if self._handle is None:
            self._handle = self._display.display(data, raw=True, display_id=True)
        else:
            self._handle.update(data, raw=True)


def _display() -> Any:
    """Returns IPython's display module where this process is a notebook's kernel."""
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython is not None else None
    if shell is None or not hasattr(shell, "kernel"):
        return None
    return importlib.import_module("IPython.display")
