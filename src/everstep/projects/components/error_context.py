"""What a project's code raises, as one line: which method failed, where and why."""

import ast
import contextlib
import re
import traceback
from collections.abc import Iterator
from pathlib import Path

from everstep.errors import TrainingError, UsageError

_NOISE = re.compile(
    r"\x1b\[[0-9;]*m|\{\{function_node [^}]*\}\} ?"
    r"|Error in user-defined function passed to \S+ transformation with iterator: \S+ "
    r"|(\s*\[\[\{\{node [^]]*\]\])?\s*\[Op:[^]]*\] name: ?\S*\s*$"
)
"""Colours, and the nodes of its graph that TensorFlow lists around the reason when a dataset fails."""

_FRAME = re.compile(r'^( *)File "(.+)", line (\d+), in .*$', re.MULTILINE)
"""A line of a traceback inside a message: AutoGraph's `in user code:`, or that of a function called by TensorFlow."""

_MAX_LENGTH = 2000  # characters of a reason; its last line is never cut


@contextlib.contextmanager
def error_context(what: str, source: Path, *, key: str = "", origin: str = "", remedy: str = "") -> Iterator[None]:
    """Inside the block an exception of the project's code becomes a `UsageError`, whose cause it is.

    Args:
      what: What is being done, such as `models.Net.get_compiled_model()`.
      source: The folder of the project's code; the error names the innermost line there.
      key: The key of the configuration that chose the code.
      origin: Where that key is set.
      remedy: What may help.

    Raises:
      UsageError: The code failed.
    """
    try:
        yield
    except (UsageError, TrainingError):
        raise
    except Exception as error:
        reason = f"{what} failed{_location(error, source)}: {describe_error(error)}"
        raise UsageError(reason, key=key, origin=origin, remedy=remedy) from error


def describe_error(error: BaseException) -> str:
    """Returns type and message of an exception in one line.

    Where a function of the user's fails inside TensorFlow, the message holds a traceback, and the reason below it.
    """
    text = _NOISE.sub("", str(error))
    inside = _below_frames(text)
    lines = [" ".join(line.split()) for line in (inside or text).splitlines() if line.strip()]
    if len(whole := " ".join(lines)) > _MAX_LENGTH:
        whole = f"{whole[: max(_MAX_LENGTH - len(lines[-1]), 300)]} … {lines[-1]}"
    return whole if inside else f"{type(error).__name__}: {whole}"


def _below_frames(text: str) -> str:
    """Returns the part of a message below the last line of a traceback in it; empty if it contains none."""
    frames = list(_FRAME.finditer(text))
    if not frames:
        return ""
    indented = f"{frames[-1][1]} "
    lines = text[frames[-1].end() :].splitlines()
    while lines and (not lines[0].strip() or lines[0].startswith(indented)):  # the source, and marks below it
        lines.pop(0)
    return "\n".join(lines)


def _location(error: Exception, source: Path) -> str:
    """Returns ` at file:line`, the innermost in the project; empty if none is in the project."""
    if isinstance(error, SyntaxError) and error.filename:
        return f" at {error.filename}:{error.lineno}"
    own = own_places(error, source)
    return " at {}:{}".format(*own[-1]) if own else ""


def own_places(error: Exception, source: Path) -> list[tuple[str, int]]:
    """Returns file and line of every call in the project that led to an exception, the innermost last."""
    in_message = [(frame[2], int(frame[3])) for frame in _FRAME.finditer(str(error))]
    called = [(frame.filename, frame.lineno or 0) for frame in traceback.extract_tb(error.__traceback__)]
    return [place for place in (*called, *in_message) if Path(place[0]).resolve().is_relative_to(source)]


def method_at(file: str, line: int) -> tuple[str, str] | None:
    """Returns the class and the method that a line of a module belongs to; None if it is in none."""
    try:
        tree = ast.parse(Path(file).read_text("utf-8"))
    except (OSError, SyntaxError, ValueError):
        return None
    for cls in tree.body:
        if isinstance(cls, ast.ClassDef):
            for method in cls.body:
                if isinstance(method, ast.FunctionDef) and method.lineno <= line <= (method.end_lineno or 0):
                    return cls.name, method.name
    return None
