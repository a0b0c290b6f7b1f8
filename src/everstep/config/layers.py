"""Layers: values from one place, which know the file, line or override of each.

`everstep.config.sources` reads layers, `everstep.config.compose` merges them into a config. Any other source of values
only has to build layers.
"""

import dataclasses
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Literal

from everstep import redaction
from everstep.config.files import read_file
from everstep.errors import Problem, did_you_mean, join

_LAST_STEP = re.compile(r"(\.[^.\[]*|\[\d+\]|^[^.\[]*)$")
_MISTYPED = 0.85  # from this similarity on, a key is taken for a known one that was mistyped


@dataclasses.dataclass(frozen=True)
class Layer:
    """Values from one place.

    Attributes:
      origin: The file, flag or override, as an error message names it.
      tree: Nested values by field name.
      lines: For a file, the line of each key by its path, as in `layers[0].units`.
      edit: What is done with the values: `set` existing keys, `add` new ones, `drop` the keys; `set_known` skips
        unknown keys with a warning.
    """

    origin: str
    tree: Mapping[str, Any]
    lines: Mapping[str, int] = dataclasses.field(default_factory=dict)
    edit: Literal["set", "add", "drop", "set_known"] = "set"

    def __post_init__(self) -> None:
        redaction.learn(self.tree)  # before any message can quote a value

    @classmethod
    def from_file(
        cls, path: str | os.PathLike[str], edit: Literal["set", "add", "drop", "set_known"] = "set"
    ) -> "Layer":
        """Returns the values of a config file.

        Raises:
          UsageError: The file cannot be read, or has bad syntax.
        """
        document = read_file(path)
        return cls(str(path), document.tree, document.lines, edit)

    def origin_of(self, path: str) -> str:
        """Returns where the value at a key path is written: `conf.yaml:12`, or the origin where there are no lines."""
        while path and path not in self.lines:
            path = _LAST_STEP.sub("", path)
        return f"{self.origin}:{self.lines[path]}" if path else self.origin

    def located(self, problems: Iterable[Problem]) -> list[Problem]:
        """Returns problems with the place of each key in this layer."""
        return [dataclasses.replace(problem, origin=self.origin_of(problem.key)) for problem in problems]

    def moved(self, source: str, target: str) -> "Layer":
        """Returns the values below the key `source` as those of `target`, each with its line; empty keys mean all.

        Layer("f", {"a": {"x": 1}}).moved("a", "b.c").tree  # {"b": {"c": {"x": 1}}}
        """
        value: Any = self.tree
        for name in source.split(".") if source else ():
            value = value[name]
        inside = {key: line for key, line in self.lines.items() if not source or is_at_or_below(key, source)}
        lines = {join(target, key[len(source) :].removeprefix(".")): line for key, line in inside.items()}
        return dataclasses.replace(self, tree=nested(target, value) if target else value, lines=lines)


def walk(tree: Mapping[str, Any], path: str = "") -> Iterator[tuple[str, Any]]:
    """Yields every value in a tree with its key path; lists are values, empty mappings too."""
    for key, value in tree.items():
        below = join(path, str(key))
        if isinstance(value, Mapping) and value:
            yield from walk(value, below)
        else:
            yield below, value


def nested(key: str, value: Any) -> dict[str, Any]:
    """Returns `value` in a tree, at a dotted key."""
    for name in reversed(key.split(".")):
        value = {name: value}
    return value


def is_at_or_below(path: str, top: str) -> bool:
    """Returns whether a key path is `top`, or leads to a part of it."""
    return path == top or path.startswith((f"{top}.", f"{top}["))


def last_setter(layers: Iterable[Layer], path: str) -> Layer | None:
    """Returns the last of the layers that sets a key path: itself, a part of it or what contains it."""
    found = None
    for layer in layers:
        if any(is_at_or_below(key, path) or is_at_or_below(path, key) for key, _ in walk(layer.tree)):
            found = layer
    return found


def origin_of(layers: Iterable[Layer], path: str) -> str:
    """Returns where the last of the layers that sets a key path does so; empty where none does."""
    setter = last_setter(layers, path) if path else None
    return setter.origin_of(path) if setter else ""


def with_origins(problems: Iterable[Problem], layers: Sequence[Layer]) -> list[Problem]:
    """Returns problems with the place of each value, where one of the layers sets it."""
    return [
        dataclasses.replace(problem, origin=origin_of(layers, problem.key) or problem.origin) for problem in problems
    ]


def mistyped_keys(layer: Layer, known: Iterable[str], section: str = "") -> list[Problem]:
    """Returns the keys of an open section that are nearly a known one which is not set; any other may be the user's.

    Args:
      layer: The values whose keys are checked.
      known: The keys that the section is known to have.
      section: The dotted key of the section; empty for the top.
    """
    tree: Any = layer.tree
    for name in section.split(".") if section else ():
        tree = tree.get(name) if isinstance(tree, Mapping) else None
    known, tree = list(known), tree if isinstance(tree, Mapping) else {}
    unset = [name for name in known if name not in tree]
    problems = []
    for key in map(str, tree):
        remedy = "" if key in known else did_you_mean(key, unset, most=2, similarity=_MISTYPED)
        if remedy:
            problems.append(Problem(join(section, key), "unknown key", remedy=remedy))
    return layer.located(problems)
