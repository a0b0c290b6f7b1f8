"""Reading gin files and what they include.

Left to itself, gin runs what a file asks for: it imports modules and, with dynamic registration, makes any function
in them callable. Here every statement is only noted, and imports are held against the allowlist.
"""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from everstep.config.allowed import require_module
from everstep.config.gin.syntax import Binding, Context, binding, statements
from everstep.errors import UsageError

NEXT_FILE = "# everstep: what follows was a file of its own"
"""The line between two files in one text: imports before it do not hold after it."""

_DYNAMIC = "from __gin__ import dynamic_registration"


class Reader:
    """Collects bindings in gin's order: those of an included file stand where it is included.

    Attributes:
      bindings: What was found.
      contexts: The files it was in, also those that only import.
    """

    def __init__(self) -> None:
        self.bindings: list[Binding] = []
        self.contexts: list[Context] = []
        self._open: list[Path] = []

    def read_file(self, path: Path, origin: str = "") -> None:
        """Reads a file, and those it includes, by paths relative to itself.

        Args:
          path: The file.
          origin: Where it is included, if it is.

        Raises:
          UsageError: It cannot be read, has bad syntax, includes itself, or imports what is not allowed.
        """
        text = _text(path, f"{origin}: " if origin else "")
        if path.resolve() in self._open:
            raise UsageError(f"{origin}: {path} includes itself")
        self._open.append(path.resolve())
        self.read_text(text, str(path), lambda line: f"{path}:{line}", path.parent)
        self._open.pop()

    def read_text(self, text: str, name: str, origin_of: Callable[[int], str], folder: Path) -> None:
        """Reads statements.

        Args:
          text: The statements.
          name: What they are in, for errors of syntax.
          origin_of: Names the place of a line, by its number.
          folder: What included files are relative to.

        Raises:
          UsageError: As `read_file`.
        """
        for part in _parts(text):
            context = Context()
            self.contexts.append(context)
            for statement in statements(part, name):
                self._take(statement, origin_of(statement.location.line_num), context, folder)

    def _take(self, statement: Any, origin: str, context: Context, folder: Path) -> None:
        kind = type(statement).__name__
        if kind == "BindingStatement":
            self.bindings.append(binding(statement, origin, context))
        elif kind == "ImportStatement":
            self._take_import(statement, origin, context)
        elif kind == "IncludeStatement":
            self.read_file(folder / statement.filename, origin)

    def _take_import(self, statement: Any, origin: str, context: Context) -> None:
        if statement.format() == _DYNAMIC:
            if context.imports:
                raise UsageError(f"{origin}: dynamic registration must come before every other import")
            context.is_dynamic = True
            return
        try:
            require_module(statement.module)
        except UsageError as error:
            raise UsageError(f"{origin}: {statement.format()}: {error}") from None
        bound = statement.bound_name()
        context.imports[statement.format()] = statement.module
        context.symbols[bound] = statement.module if statement.is_from or statement.alias else bound


def _parts(text: str) -> Iterator[str]:
    """Yields the files in a text; empty lines stand for what came before, so that line numbers stay right."""
    part: list[str] = []
    for number, line in enumerate(text.split("\n")):
        if line == NEXT_FILE:
            yield "\n".join(part)
            part = [""] * (number + 1)
        else:
            part.append(line)
    yield "\n".join(part)


def _text(path: Path, prefix: str) -> str:
    try:
        if path.exists() and not path.is_file():  # a device or a pipe might never end
            raise OSError("it is not a file")
        return path.read_text(encoding="utf-8-sig")
    except FileNotFoundError:
        raise UsageError(f"{prefix}gin file {path} does not exist") from None
    except (OSError, ValueError) as error:
        raise UsageError(f"{prefix}gin file {path} cannot be read: {error}") from None
