"""Alternatives: fields of which at most one has a value, such as `train_steps` and `epochs`.

A class names them in groups:

    _alternatives: ClassVar[tuple[tuple[str, ...], ...]] = (("train_steps", "epochs"),)

Giving one of a group a value makes None of the others: an override, a later layer and an assignment need not
know which one was in use before. Two at once, in one mapping or one call, is an error.
"""

import dataclasses
from collections.abc import Iterable, Mapping
from typing import Any

from everstep.config.problem import ConfigError, Problem, show
from everstep.errors import UsageError

Groups = Iterable[tuple[str, ...]]


def given_way(groups: Groups, values: Mapping[str, Any]) -> list[str]:
    """Returns the fields that become None where `values` are set.

    Raises:
      ConfigError: Two alternatives have a value.
    """
    cleared: list[str] = []
    for group in groups:
        given = [name for name in group if values.get(name) is not None]
        if len(given) > 1:
            raise ConfigError([_both(given, values)])
        cleared += [name for name in group if given and name not in given]
    return cleared


def given_way_in_construction(cls: type, groups: Groups, held: Mapping[str, Any], name: str) -> list[str]:
    """Returns the fields that become None when a new instance has just been given `name`.

    Fields are set one after the other then, most of them to their defaults, and a default gives way to a value.

    Args:
      cls: The dataclass.
      groups: Its alternatives.
      held: The fields set so far.
      name: The field set last.

    Raises:
      ConfigError: Two alternatives were passed a value.
    """
    rivals = [other for group in groups if name in group for other in group if held.get(other) is not None]
    if name not in rivals or len(rivals) < 2:
        return []
    defaults = {field.name: field.default for field in dataclasses.fields(cls)}
    passed = [other for other in rivals if held[other] != defaults[other]]
    if len(passed) > 1:
        raise ConfigError([_both(passed, held)])
    kept = passed or [name]
    return [other for other in rivals if other not in kept]


def check_declaration(cls: type, groups: Groups) -> None:
    """Refuses a class of whose alternatives two have a default.

    Raises:
      UsageError: Names them.
    """
    for group in groups:
        set_by_default = [name for name in group if _default(cls, name) is not None]
        if len(set_by_default) > 1:
            names = " and ".join(set_by_default)
            raise UsageError(f"{cls.__qualname__}: {names} are alternatives; only one can have a default, not None")


def _default(cls: type, name: str) -> Any:
    default = getattr(cls, name, None)
    return default.default if isinstance(default, dataclasses.Field) else default


def _both(names: list[str], values: Mapping[str, Any]) -> Problem:
    *others, last = names
    beside = ", ".join(f"{name}={show(values[name])}" for name in others)
    text = f"received {show(values[last])} beside {beside}, but they are alternatives: give one of them"
    return Problem(last, text)
