"""Overrides: `a.b=1`, `+new=2`, `~old`, several with commas, inline YAML, or the name of a file."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from everstep.config import dialect
from everstep.config.files import SUFFIXES, as_tree, load_text
from everstep.config.layers import Layer, nested
from everstep.errors import UsageError

_KEY = r"[A-Za-z_]\w*(?:\[\d+\])?(?:\.[A-Za-z_]\w*(?:\[\d+\])?)*"
_PAIR = re.compile(rf"\s*(\+\+|\+)?({_KEY})\s*=(.*)", re.DOTALL)
_DROP = re.compile(rf"~({_KEY})")
_NEXT_PAIR = re.compile(rf",\s*(?:\+\+|\+)?{_KEY}\s*=")
_CLOSING = {"[": "]", "{": "}"}


def override_layers(text: str) -> list[Layer]:
    """Returns the layers in one override: its pairs, its inline mapping, or the file it names.

    Raises:
      UsageError: It is none of these.
    """
    text = text.strip()
    if _PAIR.match(text):
        return [_pair_layer(pair) for pair in _by_index(list(split_pairs(text)))]
    if drop := _DROP.fullmatch(text):
        return [Layer(f"override {text!r}", nested(drop[1], None), edit="drop")]
    if text.lower().endswith(SUFFIXES) and not text.startswith("{") and "\n" not in text:
        return [Layer.from_file(text)]
    if text and _is_file(text):
        return [Layer.from_file(text)]
    if not text or not (text.startswith("{") or ":" in text):
        raise UsageError("expected key=value, ~key, inline YAML or a config file", key="override", received=text)
    origin = f"override {text!r}"
    return [Layer(origin, as_tree(load_text(text, origin), origin))]


def parse_override(text: str) -> tuple[str, Any]:
    """Returns key and value of `key=value`, without the plus that adds a key.

    The value is read as a config file would read it: `1e-3` is a float, `null` and `None` are None, lists and
    mappings are written `[1, 2]` and `{a: 1}`, text may be quoted. Nothing after `=` is the empty text.

    Raises:
      UsageError: It is not of that form.
    """
    match = _PAIR.fullmatch(text)
    if match is None:
        raise UsageError("expected key=value, such as trainer.train_steps=100", key="override", received=text)
    value = match[3].strip()
    if not value:
        return match[2], ""
    if value[0] not in "[{\"'":
        return match[2], dialect.plain(value)  # not YAML: '*.tfrecord' and 'a #1' are ordinary text
    return match[2], load_text(value, f"override {text!r}")


def _pair_layer(pair: str) -> Layer:
    adds = pair.lstrip().startswith("+")
    return Layer(f"override {pair.strip()!r}", nested(*parse_override(pair)), edit="add" if adds else "set")


def split_pairs(text: str) -> Iterator[str]:
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
    before, escaped = "", False
    for position, char in enumerate(text):
        if escaped:
            escaped = False
            continue
        if closing and char == closing[-1]:
            closing.pop()
        elif closing and closing[-1] in "\"'":
            escaped = char == "\\" and closing[-1] == '"'
            continue
        elif char in "\"'" and before in "=,[{:":  # elsewhere a quote is an apostrophe
            closing.append(char)
        elif char in _CLOSING and (closing or before in "=$"):
            closing.append(_CLOSING[char])
        elif char == "," and not closing:
            yield position
        before = before if char.isspace() else char


def _by_index(pairs: list[str]) -> list[str]:
    """Returns the pairs with the elements of each list in order: a list grows from its end, `b[2]=3,b[0]=1,b[1]=2`."""
    places: dict[str, list[int]] = {}
    keys = [_PAIR.match(pair)[2] for pair in pairs]  # type: ignore[index]
    for place, key in enumerate(keys):
        if "[" in key:
            places.setdefault(key.partition("[")[0], []).append(place)
    ordered = list(pairs)
    for mine in places.values():
        by_index = sorted(mine, key=lambda place: [int(index) for index in re.findall(r"\[(\d+)\]", keys[place])])
        for place, source in zip(mine, by_index, strict=True):
            ordered[place] = pairs[source]
    return ordered


def _is_file(text: str) -> bool:
    try:
        return Path(text).is_file()
    except (OSError, ValueError):
        return False
