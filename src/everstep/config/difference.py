"""What differs between two configs, key by key."""

import dataclasses
import math
from collections.abc import Iterator, Mapping
from typing import Any

import yaml

from everstep.config import dialect
from everstep.config.base import Config
from everstep.errors import join


class _Absent:
    def __repr__(self) -> str:
        return "(absent)"


ABSENT: Any = _Absent()
"""Stands for the value of a key that one of the configs does not have."""


@dataclasses.dataclass(frozen=True)
class Change:
    """One key with two values; as text `trainer.train_steps: 100 -> 200`.

    Attributes:
      path: Dotted key path.
      old: The value in the first config, or `ABSENT`.
      new: The value in the second config, or `ABSENT`.
    """

    path: str
    old: Any
    new: Any

    def __str__(self) -> str:
        return f"{self.path}: {in_line(self.old)} -> {in_line(self.new)}"


def differences(old: Config, new: Config) -> list[Change]:
    """Returns what differs, in the order of the keys.

    Lists are compared as a whole. Of a `OneOfConfig` the branch in use counts: where `type` differs, one branch is
    absent here and the other there, each a single change. Values that a file spells the same are the same: a list
    and a tuple, a path and its text.
    """
    return tree_differences(old.as_dict(), new.as_dict())


def tree_differences(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[Change]:
    """Returns what differs between two nested mappings, key by key."""
    return list(_changes(old, new, ""))


def in_line(value: Any) -> str:
    """Returns a value as YAML on one line; where YAML has no form for it, as Python shows it."""
    try:
        text = yaml.dump({"k": value}, Dumper=dialect.Dumper, default_flow_style=True, **_IN_LINE)
    except yaml.representer.RepresenterError:
        return repr(value)
    return text.strip().removeprefix("{k: ").removesuffix("}")


_IN_LINE: Any = {"sort_keys": False, "allow_unicode": True, "width": math.inf}


def _changes(old: Mapping[str, Any], new: Mapping[str, Any], path: str) -> Iterator[Change]:
    for key in {**old, **new}:
        before, after = old.get(key, ABSENT), new.get(key, ABSENT)
        where = join(path, str(key))
        if isinstance(before, Mapping) and isinstance(after, Mapping):
            yield from _changes(before, after, where)
        elif before is ABSENT or after is ABSENT or not _spelled_the_same(before, after):
            yield Change(where, before, after)


def _spelled_the_same(one: Any, other: Any) -> bool:
    if type(one) is type(other) and isinstance(one, (str, int, type(None))):  # most values, and YAML takes its time
        return one == other
    return in_line(one) == in_line(other)
