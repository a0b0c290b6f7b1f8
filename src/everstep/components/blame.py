"""A project's code that fails: one line that says which, where and why."""

import contextlib
import re
import traceback
from collections.abc import Iterator
from pathlib import Path

from everstep.errors import TrainingError, UsageError

_GRAPH = re.compile(
    r"\{\{function_node [^}]*\}\} ?|Error in user-defined function passed to \S+ transformation with iterator: \S+ "
    r"|(\s*\[\[\{\{node [^]]*\]\])?\s*\[Op:[^]]*\] name: ?\S*\s*$"
)
"""What TensorFlow says around the reason when a dataset fails: nodes of its graph, which nobody has named."""

_COLOUR = re.compile(r"\x1b\[[0-9;]*m")

_FRAME = re.compile(r'^( *)File "(.+)", line (\d+), in .*$', re.MULTILINE)
"""A line of a traceback inside a message: AutoGraph's `in user code:`, or that of a function that TensorFlow called."""

_MOST = 2000  # characters of a reason; its last line is never cut


def in_a_line(error: BaseException) -> str:
    """Returns what an exception says, in one line and without the colours that Keras gives to shapes and layers."""
    return " ".join(_COLOUR.sub("", str(error)).split())


def reason(error: BaseException) -> str:
    """Returns type and message of an exception in one line: what went wrong, without the way there.

    What TensorFlow raises where a function of the user's fails has a traceback in its message, and the reason below it.
    """
    text = _GRAPH.sub("", _COLOUR.sub("", str(error)))
    inside = _below_frames(text)
    lines = [" ".join(line.split()) for line in (inside or text).splitlines() if line.strip()]
    if len(whole := " ".join(lines)) > _MOST:
        whole = f"{whole[: max(_MOST - len(lines[-1]), 300)]} … {lines[-1]}"
    return whole if inside else f"{type(error).__name__}: {whole}"


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
        raise UsageError(f"{what} fails{_place(error, source)}: {reason(error)}{hint}") from error


def _below_frames(text: str) -> str:
    """Returns what a message says below the last line of a traceback in it; nothing where it has none."""
    frames = list(_FRAME.finditer(text))
    if not frames:
        return ""
    indented = f"{frames[-1][1]} "
    lines = text[frames[-1].end() :].splitlines()
    while lines and (not lines[0].strip() or lines[0].startswith(indented)):  # the source, and marks below it
        lines.pop(0)
    return "\n".join(lines)


def _place(error: Exception, source: Path) -> str:
    """Returns ` at file:line`, the innermost in the project; nothing where it is not in the project."""
    if isinstance(error, SyntaxError) and error.filename:
        return f" at {error.filename}:{error.lineno}"
    told = [(frame[2], frame[3]) for frame in _FRAME.finditer(str(error))]
    called = [(frame.filename, frame.lineno) for frame in traceback.extract_tb(error.__traceback__)]
    own = [place for place in (*called, *told) if Path(place[0]).resolve().is_relative_to(source)]
    return " at {}:{}".format(*own[-1]) if own else ""
