"""Composing a config: its defaults, then layers of values over them, later ones winning.

A layer is a tree of values and the name of what it came from. Files and `key=value` overrides are read into
layers here; whatever else can supply values only has to make layers of them.
"""

import dataclasses
import os
import pathlib
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, TypeVar

from everstep.config import dialect
from everstep.config.base import Config
from everstep.config.files import SUFFIXES, as_tree, load_file, load_text
from everstep.config.problem import ConfigError, Problem
from everstep.errors import UsageError

AnyConfig = TypeVar("AnyConfig", bound=Config)

_KEY = r"[A-Za-z_]\w*(?:\[\d+\])?(?:\.[A-Za-z_]\w*(?:\[\d+\])?)*"
_PAIR = re.compile(rf"\s*({_KEY})\s*=(.*)", re.DOTALL)
_NEXT_PAIR = re.compile(rf",\s*{_KEY}\s*=")
_CLOSING = {"[": "]", "{": "}"}


@dataclasses.dataclass(frozen=True)
class Layer:
    """Values from one place.

    Attributes:
      origin: The file or override, as an error message names it.
      tree: Nested values by field name.
    """

    origin: str
    tree: Mapping[str, Any]


def apply(config: AnyConfig, files: Iterable[str | os.PathLike[str]] = (), overrides: Iterable[str] = ()) -> AnyConfig:
    """Returns a copy of `config` with the files in order and then the overrides applied.

    Args:
      config: The defaults; left as they are.
      files: Config files.
      overrides: Each one of `key=value`, several of them with commas between (`a.b=1,c=[1,2]`), an inline
        YAML or JSON mapping, or the path of a config file.

    Raises:
      UsageError: Everything wrong in all layers, each with key path, value and origin.
    """
    layers = [Layer(str(path), load_file(path)) for path in files]
    for text in overrides:
        layers += parse_overrides(text)
    return apply_layers(config, layers)


def apply_layers(config: AnyConfig, layers: Iterable[Layer]) -> AnyConfig:
    """Returns a copy of `config` with the layers applied in order.

    Raises:
      UsageError: Everything wrong in all layers, each with key path, value and origin.
    """
    new = config.replace()
    problems: list[Problem] = []
    for layer in layers:
        try:
            new.override(layer.tree)
        except ConfigError as error:
            problems += [dataclasses.replace(problem, origin=layer.origin) for problem in error.problems]
    if problems:
        raise ConfigError(problems)
    return new


def parse_overrides(text: str) -> list[Layer]:
    """Returns the layers in one override: its pairs, its inline mapping, or the file it names.

    Raises:
      UsageError: It is none of these.
    """
    text = text.strip()
    if _PAIR.match(text):
        return [Layer(f"override {pair!r}", _nested(*parse_override(pair))) for pair in _pairs(text)]
    if text.lower().endswith(SUFFIXES) and not text.startswith("{") and "\n" not in text:
        return [Layer(text, load_file(text))]
    if text and _is_file(text):
        return [Layer(text, load_file(text))]
    if not text or not (text.startswith("{") or ":" in text):
        raise UsageError(f"override {text!r} is neither key=value, nor inline YAML, nor a config file")
    origin = f"override {text!r}"
    return [Layer(origin, as_tree(load_text(text, origin), origin))]


def parse_override(text: str) -> tuple[str, Any]:
    """Returns key and value of `key=value`.

    The value is read as a config file would read it: `1e-3` is a float, `null` and `None` are None, lists and
    mappings are written `[1, 2]` and `{a: 1}`, text may be quoted. Nothing after `=` is the empty text.

    Raises:
      UsageError: It is not of that form.
    """
    match = _PAIR.fullmatch(text)
    if match is None:
        raise UsageError(f"override {text!r} is not of the form key=value, such as trainer.train_steps=100")
    return match[1], _value(match[2].strip(), text)


def _value(text: str, override: str) -> Any:
    if not text:
        return ""
    if text[0] not in "[{\"'":
        return dialect.plain(text)  # not YAML: '*.tfrecord' and 'a #1' are ordinary text
    return load_text(text, f"override {override!r}")


def _pairs(text: str) -> Iterator[str]:
    """Yields the `key=value` pairs; commas in brackets, in quotes or before no further key do not split."""
    start = 0
    for position in _open_commas(text):
        if _NEXT_PAIR.match(text, position):
            yield text[start:position]
            start = position + 1
    yield text[start:].strip().rstrip(",")


def _open_commas(text: str) -> Iterator[int]:
    """Yields the positions of commas outside brackets and quotes."""
    closing: list[str] = []
    before = ""
    for position, char in enumerate(text):
        if closing and char == closing[-1]:
            closing.pop()
        elif closing and closing[-1] in "\"'":
            continue
        elif char in "\"'" and before in "=,[{:":  # elsewhere a quote is an apostrophe
            closing.append(char)
        elif char in _CLOSING and (closing or before == "="):
            closing.append(_CLOSING[char])
        elif char == "," and not closing:
            yield position
        before = before if char.isspace() else char


def _nested(key: str, value: Any) -> dict[str, Any]:
    for name in reversed(key.split(".")):
        value = {name: value}
    return value


def _is_file(text: str) -> bool:
    try:
        return pathlib.Path(text).is_file()
    except (OSError, ValueError):
        return False
