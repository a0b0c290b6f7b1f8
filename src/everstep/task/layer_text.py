"""Reads what `description.py` writes of a layer, `Dense(units=16, use_bias=True) <- flatten`, to say what differs."""

import re
from collections.abc import Sequence
from typing import NamedTuple

_CALL = re.compile(r"(?P<name>[\w.]+)(?:\((?P<arguments>.*)\))?", re.DOTALL)
_OPENING, _CLOSING = "([{", ")]}"


class LayerText(NamedTuple):
    """A layer as text, taken apart.

    Attributes:
      name: Its class.
      arguments: Its settings, by name; its inputs and outputs as `inputs` and `outputs`.
    """

    name: str
    arguments: dict[str, str]


def read_layer(text: str) -> LayerText | None:
    """Returns the class of a layer and its arguments; None for any other text, and for one that is cut."""
    call, outputs = _divided(text, " -> ")
    call, inputs = _divided(call, " <- ")
    match = _CALL.fullmatch(call)
    parts = _at_commas(match["arguments"] or "") if match else None
    if match is None or parts is None or any("=" not in part for part in parts):
        return None
    arguments = dict(part.split("=", 1) for part in parts)
    around = {"inputs": inputs, "outputs": outputs}
    return LayerText(match["name"], arguments | {name: value for name, value in around.items() if value})


def differing_arguments(texts: Sequence[str | None]) -> list[tuple[str, list[str | None]]]:
    """Returns the arguments in which layers of one class differ, with the value of each; [] if they are not of one.

        differing_arguments(["Dense(units=16, use_bias=True)", "Dense(units=32, use_bias=True)"])
        # [("units", ["16", "32"])]

    Args:
      texts: The layers; None for one that is missing.
    """
    layers = [layer for layer in (text and read_layer(text) for text in texts) if layer]
    if len(layers) < len(texts) or len({layer.name for layer in layers}) > 1:
        return []
    found: list[tuple[str, list[str | None]]] = []
    for name in dict.fromkeys(name for layer in layers for name in layer.arguments):
        values = [layer.arguments.get(name) for layer in layers]
        if len(set(values)) > 1:
            inner = differing_arguments(values)
            found += [(f"{name} {part}", inside) for part, inside in inner] or [(name, values)]
    return found


def _divided(text: str, sign: str) -> tuple[str, str]:
    """Returns what is before and after a sign that is outside all brackets."""
    depth = 0
    for place, letter in enumerate(text):
        depth += (letter in _OPENING) - (letter in _CLOSING)
        if not depth and text.startswith(sign, place):
            return text[:place], text[place + len(sign) :]
    return text, ""


def _at_commas(text: str) -> list[str] | None:
    """Returns the parts between commas that are outside all brackets; None if brackets do not match."""
    parts, depth, begin = list[str](), 0, 0
    for place, letter in enumerate(text):
        depth += (letter in _OPENING) - (letter in _CLOSING)
        if depth < 0:
            return None
        if letter == "," and not depth:
            parts.append(text[begin:place].strip())
            begin = place + 1
    if depth:
        return None
    return [part for part in [*parts, text[begin:].strip()] if part]
