"""`Layer`: values from one place, which knows that place."""

import dataclasses
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Literal

from everstep import redaction
from everstep.config.files import read_file
from everstep.config.problem import join

_LAST_STEP = re.compile(r"(\.[^.\[]*|\[\d+\]|^[^.\[]*)$")


@dataclasses.dataclass(frozen=True)
class Layer:
    """Values from one place.

    Attributes:
      origin: The file, flag or override, as an error message names it.
      tree: Nested values by field name.
      lines: For a file, the line of each key by its path, as in `layers[0].units`.
      edit: What is done with the values: `set` those there are, `add` new ones, `drop` the keys; `set_known` leaves
        out keys that there are not, with a warning.
    """

    origin: str
    tree: Mapping[str, Any]
    lines: Mapping[str, int] = dataclasses.field(default_factory=dict)
    edit: Literal["set", "add", "drop", "set_known"] = "set"

    def __post_init__(self) -> None:
        redaction.learn(self.tree)  # before any message can quote a value

    @classmethod
    def from_file(cls, path: str | os.PathLike[str]) -> "Layer":
        """Returns the values of a config file.

        Raises:
          UsageError: The file cannot be read, or has bad syntax.
        """
        document = read_file(path)
        return cls(str(path), document.tree, document.lines)

    def origin_of(self, path: str) -> str:
        """Returns where the value at a key path is written: `conf.yaml:12`, or the origin where there are no lines."""
        while path and path not in self.lines:
            path = _LAST_STEP.sub("", path)
        return f"{self.origin}:{self.lines[path]}" if path else self.origin


def last_setter(layers: Iterable[Layer], path: str) -> Layer | None:
    """Returns the last of the layers that says something about a key path: itself, a part of it or all around it."""
    setters = [layer for layer in layers if any(_touches(key, path) for key, _ in walk(layer.tree))]
    return setters[-1] if setters else None


def _touches(key: str, path: str) -> bool:
    longer, shorter = (key, path) if len(key) >= len(path) else (path, key)
    return longer == shorter or longer.startswith((f"{shorter}.", f"{shorter}["))


def walk(tree: Mapping[str, Any], path: str = "") -> Iterator[tuple[str, Any]]:
    """Yields every value in a tree with its key path; lists are values, empty mappings too."""
    for key, value in tree.items():
        below = join(path, str(key))
        if isinstance(value, Mapping) and value:
            yield from walk(value, below)
        else:
            yield below, value
