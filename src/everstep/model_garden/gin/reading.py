"""Reading gin files: statements as records of what is bound, to what, and where.

Left to itself, gin runs what a file requests: it imports modules and, with dynamic registration, makes any function
in them callable. Here every statement is only recorded, and imports are checked against the allowlist.
"""

import dataclasses
import math
import tokenize
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from everstep.config import allowed
from everstep.errors import UsageError, missing_extra

NEXT_FILE = "# everstep: what follows was a file of its own"
"""The line between two files in one text: imports before it do not hold after it."""

_DYNAMIC = "from __gin__ import dynamic_registration"


@dataclasses.dataclass(frozen=True)
class Reference:
    """`@name`, a configurable, or `@name()`, what it returns; scopes are part of the name."""

    name: str
    evaluate: bool

    def __repr__(self) -> str:
        return f"@{self.name}{'()' if self.evaluate else ''}"


@dataclasses.dataclass(frozen=True)
class Macro:
    """`%name`: the value that `name = value` gives, in any file."""

    name: str

    def __repr__(self) -> str:
        return f"%{self.name}"


@dataclasses.dataclass(eq=False)
class Context:
    """What applies to all statements of one file.

    Attributes:
      imports: The modules it imports, by import statement.
      symbols: The dotted names that the names bound by imports stand for.
      is_dynamic: Configurables are named through the imports, and registered when they are named.
    """

    imports: dict[str, str] = dataclasses.field(default_factory=dict)
    symbols: dict[str, str] = dataclasses.field(default_factory=dict)
    is_dynamic: bool = False

    def header(self) -> list[str]:
        """Returns the imports as lines of gin."""
        return [*(["from __gin__ import dynamic_registration"] if self.is_dynamic else []), *self.imports]

    def full_name(self, selector: str) -> str:
        """Returns the dotted name that a selector stands for, as far as the imports determine it."""
        symbol, dot, rest = selector.partition(".")
        return f"{self.symbols[symbol]}{dot}{rest}" if self.is_dynamic and symbol in self.symbols else selector


@dataclasses.dataclass(frozen=True)
class Binding:
    """One value: `scope/selector.argument = value`; or a macro, `scope/selector = value`.

    Attributes:
      scope: Scopes with slashes between, or nothing.
      selector: The configurable's dotted name, or the end of it; or the macro's name.
      argument: The argument's name; nothing for a macro.
      value: Plain values, References and Macros.
      text: The value as gin writes it.
      origin: Where the statement is.
      context: The imports of its file.
    """

    scope: str
    selector: str
    argument: str
    value: Any
    text: str
    origin: str
    context: Context = dataclasses.field(repr=False)

    @property
    def key(self) -> str:
        """What gets the value, as it is written."""
        scope = f"{self.scope}/" if self.scope else ""
        return f"{scope}{self.selector}.{self.argument}" if self.argument else f"{scope}{self.selector}"

    @property
    def macro(self) -> str | None:
        """The name of the macro that is defined, if one is."""
        if not self.argument:
            return self.key
        return self.scope if f"{self.selector}.{self.argument}" in ("macro.value", "gin.macro.value") else None


class _Records:
    """Makes gin's parser keep names as names."""

    def configurable_reference(self, name: str, evaluate: bool) -> Reference:
        return Reference(name, evaluate)

    def macro(self, name: str) -> Macro:
        return Macro(name)


def statements(text: str, origin: str) -> Iterator[Any]:
    """Yields gin's statements in a text; nothing is imported and nothing is bound.

    Raises:
      UsageError: Bad syntax; `origin` names the text, the message the line.
    """
    try:
        from gin.config_parser import ConfigParser
    except ImportError:
        raise missing_extra("gin-config", "gin", "reading gin bindings") from None
    try:
        parser = ConfigParser(text, _Records())
        while statement := parser.parse_statement():
            yield statement
    except SyntaxError as error:
        reason = error.msg.rpartition("\n")[2].strip()
        raise UsageError(reason, key=f"{origin}, line {error.lineno or 1}") from None
    except tokenize.TokenError as error:
        raise UsageError(error.args[0], key=f"{origin}, line {error.args[1][0]}") from None
    except (RecursionError, StopIteration, TypeError, ValueError) as error:  # nested too deep, cut off, [1] as a key
        raise UsageError(f"gin cannot read it: {error or type(error).__name__}", key=origin) from None


def _binding(statement: Any, origin: str, context: Context) -> Binding:
    """Returns the record of one of gin's binding statements.

    Raises:
      UsageError: The value cannot be stored with a run.
    """
    scope, selector, argument, value, _ = statement
    try:
        return Binding(scope, selector, argument, value, as_gin(value), origin, context)
    except (ValueError, RecursionError) as error:
        raise UsageError(f"cannot be stored: {error}", key=f"{selector}.{argument}", origin=origin) from None


def as_gin(value: Any) -> str:
    """Returns a value as gin reads it back."""
    if isinstance(value, Mapping):
        return f"{{{', '.join(f'{as_gin(key)}: {as_gin(item)}' for key, item in value.items())}}}"
    if isinstance(value, list):
        return f"[{', '.join(map(as_gin, value))}]"
    if isinstance(value, tuple):
        return f"({''.join(f'{as_gin(item)}, ' for item in value)})"
    if isinstance(value, float) and math.isinf(value):
        return "1e999" if value > 0 else "-1e999"
    return f"{value.imag!r}j" if isinstance(value, complex) else repr(value)


def names_in(value: Any) -> Iterator[Reference | Macro]:
    """Yields the references and macros in a value."""
    if isinstance(value, (Reference, Macro)):
        yield value
    elif isinstance(value, Mapping):
        for pair in value.items():
            yield from names_in(pair)
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from names_in(item)


class GinReader:
    """Collects bindings in gin's order: those of an included file come where it is included.

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
          path: The gin file to read.
          origin: Where it is included, if it is.

        Raises:
          UsageError: It cannot be read, has bad syntax, includes itself, or imports what is not allowed.
        """
        text = _text(path, origin)
        if path.resolve() in self._open:
            raise UsageError("includes itself", key=f"gin file {path}", origin=origin)
        self._open.append(path.resolve())
        self.read_text(text, str(path), lambda line: f"{path}:{line}", path.parent)
        self._open.pop()

    def read_text(self, text: str, name: str, origin_of: Callable[[int], str], folder: Path) -> None:
        """Reads statements.

        Args:
          text: The gin statements to read.
          name: The name of the text in syntax errors.
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
            self.bindings.append(_binding(statement, origin, context))
        elif kind == "ImportStatement":
            self._take_import(statement, origin, context)
        elif kind == "IncludeStatement":
            self.read_file(folder / statement.filename, origin)

    def _take_import(self, statement: Any, origin: str, context: Context) -> None:
        if statement.format() == _DYNAMIC:
            if context.imports:
                raise UsageError("dynamic registration must come before every other import", origin=origin)
            context.is_dynamic = True
            return
        try:
            allowed.require_module(statement.module)
        except UsageError as error:
            problems = [dataclasses.replace(problem, origin=origin) for problem in error.problems]
            raise UsageError([problem.under(statement.format()) for problem in problems]) from None
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


def _text(path: Path, origin: str) -> str:
    try:
        if path.exists() and not path.is_file():  # a device or a pipe might never end
            raise OSError("it is not a file")
        return path.read_text(encoding="utf-8-sig")
    except FileNotFoundError:
        raise UsageError("does not exist", key=f"gin file {path}", origin=origin) from None
    except (OSError, ValueError) as error:
        raise UsageError(f"cannot be read: {error}", key=f"gin file {path}", origin=origin) from None
