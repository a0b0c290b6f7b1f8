"""Gin's statements as records: what a file binds, to what, and where it says so."""

import dataclasses
import math
import tokenize
from collections.abc import Iterator, Mapping
from typing import Any

from everstep.errors import UsageError, missing_extra


@dataclasses.dataclass(frozen=True)
class Reference:
    """`@name`, a configurable, or `@name()`, what it returns; scopes are part of the name."""

    name: str
    evaluate: bool

    def __repr__(self) -> str:
        return f"@{self.name}{'()' if self.evaluate else ''}"


@dataclasses.dataclass(frozen=True)
class Macro:
    """`%name`: the value that `name = value` gives, in whatever file."""

    name: str

    def __repr__(self) -> str:
        return f"%{self.name}"


@dataclasses.dataclass(eq=False)
class Context:
    """What holds for the statements of one file.

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
        """Returns the dotted name that a selector stands for, as far as the imports tell."""
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
      context: What holds for the file it is in.
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
    """Tells gin's parser to keep names as names."""

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
        raise UsageError(f"{origin}, line {error.lineno or 1}: {reason}") from None
    except tokenize.TokenError as error:
        raise UsageError(f"{origin}, line {error.args[1][0]}: {error.args[0]}") from None
    except (RecursionError, StopIteration, TypeError, ValueError) as error:  # nested too deep, cut off, [1] as a key
        raise UsageError(f"{origin}: gin cannot read it: {error or type(error).__name__}") from None


def binding(statement: Any, origin: str, context: Context) -> Binding:
    """Returns the record of one of gin's binding statements.

    Raises:
      UsageError: The value cannot be stored with a run.
    """
    scope, selector, argument, value, _ = statement
    try:
        return Binding(scope, selector, argument, value, written(value), origin, context)
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{origin}: the value of {selector}.{argument} cannot be stored: {error}") from None


def written(value: Any) -> str:
    """Returns a value as gin reads it back."""
    if isinstance(value, Mapping):
        return f"{{{', '.join(f'{written(key)}: {written(item)}' for key, item in value.items())}}}"
    if isinstance(value, list):
        return f"[{', '.join(map(written, value))}]"
    if isinstance(value, tuple):
        return f"({''.join(f'{written(item)}, ' for item in value)})"
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
