"""Configurations compared key by key: every value that differs; of a layer, the arguments that differ.

A layer in a configuration is one text, as `task/description.py` writes it: `Dense(units=16, use_bias=True) <- flatten`.
"""

import contextlib
import re
from collections.abc import Iterator, Sequence
from typing import Any

import yaml

from everstep import redaction
from everstep.task import differing_arguments

_BLACKED_OUT = re.compile(rf"([:\[,-]\s*)({re.escape(redaction.MARK)})(?=\s|[,\]}}]|$)", re.MULTILINE)
"""A redacted value, three stars, which YAML would read as an alias."""


_MODEL = "task.model."
_LAYERS = f"{_MODEL}layers."
"""Where a compiled model's layers are in its configuration."""


def differences(texts: Sequence[str]) -> list[dict[str, Any]]:
    """Returns every key whose value differs between configurations: `key`, and `values`, a text or None for each.

    Of a layer that differs in some arguments, each of them is a row: `layers.dense units`.

    Texts that are not YAML mappings are left out: see `incomparable`.
    """
    flat = [dict(_leaves(_parsed(text), "")) for text in texts]
    left_out = incomparable(texts)
    keys = list(dict.fromkeys(key for leaves in flat for key in leaves))
    rows = [{"key": key, "values": [leaves.get(key) for leaves in flat]} for key in keys]
    differing = [row for row in rows if len({value for i, value in enumerate(row["values"]) if i not in left_out}) > 1]
    return [part for row in differing for part in _by_argument(row)]


def _by_argument(row: dict[str, Any]) -> list[dict[str, Any]]:
    """Returns a row for each argument in which layers differ; of any other value the row itself."""
    if not row["key"].startswith(_LAYERS):
        return [row]
    key = row["key"].removeprefix(_MODEL)
    parts = differing_arguments(row["values"])
    return [{"key": f"{key} {name}", "values": values} for name, values in parts] or [{**row, "key": key}]


def incomparable(texts: Sequence[str]) -> list[int]:
    """Returns the positions of texts that cannot be compared key by key; [] if all texts are the same."""
    if len(set(texts)) == 1:
        return []
    return [place for place, text in enumerate(texts) if text.strip() and not isinstance(_parsed(text), dict)]


def _parsed(text: str) -> Any:
    for attempt in (text, _BLACKED_OUT.sub(r"\1'\2'", text)):
        with contextlib.suppress(yaml.YAMLError, ValueError, RecursionError):
            return yaml.safe_load(attempt)
    return None


def _leaves(value: Any, path: str) -> Iterator[tuple[str, str]]:
    """Yields dotted keys with their values as text; a list counts as one value."""
    if isinstance(value, dict) and value:
        for key, item in value.items():
            yield from _leaves(item, f"{path}.{key}" if path else str(key))
    elif path:
        yield path, str(value)
