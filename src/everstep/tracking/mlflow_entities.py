"""Records of a spool in MLflow's terms: names and values that every MLflow server accepts."""

import dataclasses
import hashlib
import posixpath
import re
from collections.abc import Mapping
from typing import Any, Literal

from everstep.tracking.spool import Record, named_values

EntityType = Literal["metrics", "params", "tags"]
LIMITS: dict[EntityType, int] = {"metrics": 1000, "params": 100, "tags": 100}
"""How many of each one request may hold."""

_KEY_LENGTH = 250
_VALUE_LENGTHS = {"params": 6000, "tags": 8000}
_NOT_IN_KEYS = re.compile(r"[^\w./ :-]")


@dataclasses.dataclass(frozen=True)
class Entity:
    """One metric point, parameter or tag.

    Attributes:
      type: Which of them.
      key: Its name on the server.
      value: A number for a metric, text for the others.
      time: Milliseconds since the epoch.
      step: The step of a metric.
    """

    type: EntityType
    key: str
    value: float | str
    time: int
    step: int = 0


def entities(record: Record) -> list[Entity]:
    """Returns what a record holds; nothing for one of another type."""
    if record["type"] not in LIMITS:
        return []
    keys = _keys(list(named_values(record)))
    values = (_value(record["type"], value) for value in record["values"].values())
    make = dataclasses.replace
    blank = Entity(record["type"], "", "", record["time"], record.get("step", 0))
    return [make(blank, key=key, value=value) for key, value in zip(keys, values, strict=True)]


def flattened(values: Mapping[str, Any], prefix: str = "") -> dict[str, str]:
    """Returns the leaves of nested mappings as text, under their dotted names.

    Example: `{"trainer": {"train_steps": 10}}` becomes `{"trainer.train_steps": "10"}`.
    """
    flat: dict[str, str] = {}
    for name, value in values.items():
        if isinstance(value, Mapping) and value:
            flat |= flattened(value, f"{prefix}{name}.")
        else:
            flat[f"{prefix}{name}"] = str(value)
    return flat


def _keys(names: list[str]) -> list[str]:
    """Returns a valid key per name; names that come to the same one get a mark."""
    keys: list[str] = []
    for name in names:
        key = _key(name)
        keys.append(_marked(key, name) if key in keys or len(key) > _KEY_LENGTH else key)
    return keys


def _key(name: str) -> str:
    """Returns the name with what MLflow refuses replaced: odd characters, and what a path would resolve away."""
    parts = _NOT_IN_KEYS.sub("_", name).split("/")
    return "/".join(part if posixpath.normpath(part or ".") != "." and part != ".." else "_" for part in parts)


def _marked(key: str, name: str) -> str:
    mark = hashlib.sha256(name.encode("utf-8")).hexdigest()[:8]
    return f"{key[: _KEY_LENGTH - 9]}_{mark}"


def _value(type_: EntityType, value: float | str) -> float | str:
    if type_ == "metrics":
        return float(value)
    text, longest = str(value), _VALUE_LENGTHS[type_]
    if len(text) <= longest:
        return text
    note = f"… (cut: {len(text)} characters)"
    return text[: longest - len(note)] + note
