"""Rules about single fields of the optimization configs, found before a backend is loaded.

Types are checked whenever a value is stored; these are the rules that types cannot say. Each function yields what is
wrong with the named fields of one config. A field that is None is not set, and only `required` minds that.
"""

import dataclasses
import math
import re
from collections.abc import Iterator, Mapping
from typing import Annotated, Any, ClassVar

import pydantic

from everstep.config import Config, ConfigError, Problem
from everstep.config.declined import Declined


@dataclasses.dataclass
class CheckedConfig(Config):
    """A config that lists everything wrong with its own fields in one error."""

    def validate(self) -> None:
        """Checks the values.

        Raises:
          UsageError: Some cannot be used; a line for each, with its key.
        """
        super().validate()
        problems = list(self._wrong())
        if problems:
            raise ConfigError(problems)

    def _wrong(self) -> Iterator[Problem]:
        """Yields what is wrong; a subclass adds its own rules."""
        yield from ()


@dataclasses.dataclass
class NamedConfig(CheckedConfig):
    """An optimizer, schedule, warmup or average, which has a `name` in Model Garden's files: a label without effect."""

    _declined: ClassVar[Mapping[str, Declined]] = {
        "name": Declined("it is a label, which has no effect, and must be text", label=True)
    }


def _listed(value: Any) -> Any:
    return [value] if isinstance(value, str) else value


Patterns = Annotated[
    list[str],
    pydantic.BeforeValidator(_listed),
    pydantic.WithJsonSchema({"anyOf": [{"type": "array", "items": {"type": "string"}}, {"type": "string"}]}),
]
"""Regular expressions; a single one may stand for a list of it."""


def required(config: Config, *names: str) -> Iterator[Problem]:
    """Finds fields that have no value."""
    for name in names:
        if getattr(config, name) is None:
            yield Problem(name, "is required")


def positive(config: Config, *names: str) -> Iterator[Problem]:
    """Finds numbers that are not more than 0."""
    for name, value in _set(config, names):
        if not value > 0:
            yield Problem(name, f"received {value}, must be more than 0")


def not_negative(config: Config, *names: str) -> Iterator[Problem]:
    """Finds numbers below 0."""
    for name, value in _set(config, names):
        if not value >= 0:
            yield Problem(name, f"received {value}, cannot be negative")


def fraction(config: Config, *names: str) -> Iterator[Problem]:
    """Finds numbers that are not from 0 to 1."""
    for name, value in _set(config, names):
        if not 0 <= value <= 1:
            yield Problem(name, f"received {value}, must be from 0 to 1")


def below_one(config: Config, *names: str) -> Iterator[Problem]:
    """Finds shares that are not from 0 to less than 1: with 1, what was is kept for good, and nothing new counts."""
    for name, value in _set(config, names):
        if not 0 <= value < 1:
            yield Problem(name, f"received {value}, must be from 0 to less than 1")


def rates(config: Config, *names: str) -> Iterator[Problem]:
    """Finds learning rates, or lists with one, that lead away from where the gradients point, or nowhere."""
    for name, value in _set(config, names):
        if not all(0 <= rate < math.inf for rate in (value if isinstance(value, list) else [value])):
            yield Problem(name, f"received {value}, a learning rate is finite and not negative")


def increasing_steps(config: Config, name: str, first: int = 0) -> Iterator[Problem]:
    """Finds lists that are not steps from `first` on, each later than the one before."""
    for _, steps in _set(config, (name,)):
        if not steps or steps != sorted(set(steps)) or steps[0] < first:
            yield Problem(name, f"received {steps}, must be steps from {first} on in increasing order")


def patterns(config: Config, *names: str) -> Iterator[Problem]:
    """Finds lists with an entry that is no regular expression."""
    for name, listed in _set(config, names):
        for pattern in listed:
            try:
                re.compile(pattern)
            except re.error as error:
                yield Problem(name, f"{pattern!r} is no regular expression: {error}")


def _set(config: Config, names: tuple[str, ...]) -> Iterator[tuple[str, Any]]:
    values = ((name, getattr(config, name)) for name in names)
    return ((name, value) for name, value in values if value is not None)
