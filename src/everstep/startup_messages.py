"""What backends write to standard error while they start, held back.

TensorFlow 2.21 writes a dozen lines while it loads, whatever `TF_CPP_MIN_LOG_LEVEL` is: it reads that too late. They
come from C++ and go to file descriptor 2, past `sys.stderr`, so that is where they are caught.
"""

import contextlib
import importlib.util
import os
import re
import sys
import tempfile
import types
from collections.abc import Iterator, Sequence
from importlib.machinery import ModuleSpec
from typing import Any

_STDERR = 2
_CHATTER = re.compile(
    rb"(^|\r)"  # the live display moves the cursor, and ends no line
    rb"(?:WARNING: All log messages before absl::InitializeLog|"
    rb"[IW]\d{4} .*\.cc:\d+\]|"
    rb"To enable the following instructions: .*, rebuild TensorFlow|"
    rb"E\d{4} .*failed call to cuInit).*\n"  # that is: there is no GPU
)


@contextlib.contextmanager
def held_back() -> Iterator[None]:
    """Holds standard error back within the block; at its end writes all of it but the backends' start-up messages.

    If the block fails, everything is written, as it may be the reason. Keep the block short: output is delayed.
    With `TF_CPP_MIN_LOG_LEVEL` at 0 nothing is held back; at 1 it is: JAX sets that when it is imported.
    """
    if os.environ.get("TF_CPP_MIN_LOG_LEVEL") == "0":
        yield
        return
    with contextlib.ExitStack() as stack:
        try:
            held = stack.enter_context(tempfile.TemporaryFile())
            original = os.dup(_STDERR)
        except OSError:  # standard error is closed, or the disk is full
            original = None
        if original is None:
            yield
            return
        _flush()
        os.dup2(held.fileno(), _STDERR)
        dropped = None
        try:
            yield
            dropped = _CHATTER
        finally:
            _flush()
            os.dup2(original, _STDERR)
            os.close(original)
            held.seek(0)
            with open(_STDERR, "wb", closefd=False) as out:
                out.writelines(dropped.sub(rb"\1", line) if dropped else line for line in held)


class QuietImport:
    """A finder for `sys.meta_path`: it leaves the search to the others, and holds back what a module says at its start.

    Args:
      name: The module.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._searching = False

    def find_spec(self, name: str, path: Sequence[str] | None = None, target: Any = None) -> ModuleSpec | None:
        """Returns what the other finders return for the module; None for any other one."""
        if name != self._name or self._searching:
            return None
        self._searching = True
        try:
            spec = importlib.util.find_spec(name)
        finally:
            self._searching = False
        if spec is not None and spec.loader is not None:
            execute = spec.loader.exec_module

            def exec_module(module: types.ModuleType) -> None:
                with held_back():
                    execute(module)
                self.imported(module)

            spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec

    def imported(self, module: types.ModuleType) -> None:
        """Is called when the module is imported."""
        sys.meta_path.remove(self)


def _flush() -> None:
    if sys.stderr is not None:
        sys.stderr.flush()
