"""A project's code that fails: one line that says which, where and why."""

import contextlib
import re
import traceback
from collections.abc import Iterator
from pathlib import Path

from everstep.errors import TrainingError, UsageError

_GRAPH = re.compile(
    r"\{\{function_node [^}]*\}\} ?|Error in user-defined function passed to \S+ transformation with iterator: \S+ "
    r"|( \[\[\{\{node [^]]*\]\])? \[Op:.*$"
)
"""What TensorFlow says around the reason when a dataset fails: nodes of its graph, which nobody has named."""


_COLOUR = re.compile(r"\x1b\[[0-9;]*m")


def in_a_line(error: BaseException) -> str:
    """Returns what an exception says, in one line and without the colours that Keras gives to shapes and layers."""
    return " ".join(_COLOUR.sub("", str(error)).split())


@contextlib.contextmanager
def blamed(what: str, source: Path, hint: str = "") -> Iterator[None]:
    """Inside the block, an exception of the project's code becomes a line; it stays behind it as the cause.

    Args:
      what: What was being done, such as `runs/a/config.yaml: model_builder_class: models.Net.get_compiled_model()`.
      source: The folder of the project's code: the innermost line there is the one to look at.
      hint: What the reader should know besides, for the end of the line.

    Raises:
      UsageError: The code failed; the message has the file and the line.
    """
    try:
        yield
    except (UsageError, TrainingError):
        raise
    except Exception as error:
        text = _GRAPH.sub("", in_a_line(error))[:300]
        raise UsageError(f"{what} fails{_place(error, source)}: {type(error).__name__}: {text}{hint}") from error


def _place(error: Exception, source: Path) -> str:
    """Returns ` at file:line`, the innermost in the project; nothing where it is not in the project."""
    if isinstance(error, SyntaxError) and error.filename:
        return f" at {error.filename}:{error.lineno}"
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if Path(frame.filename).resolve().is_relative_to(source)]
    return f" at {own[-1].filename}:{own[-1].lineno}" if own else ""
