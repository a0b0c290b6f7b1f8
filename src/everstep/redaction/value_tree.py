"""Walking a tree of values, such as a configuration, with what the name of each value implies for it."""

import os
import re
from collections.abc import Callable, Mapping
from typing import Any

from everstep.redaction.secret_names import SecretKind, is_about, kind_of

_PLAIN_NAME = re.compile(r"[A-Za-z_]{1,30}")

_SCALARS = frozenset({type(None), bool, int, float, str})  # most values: they need no slow tests of other types

Leaf = Callable[[Any, SecretKind], Any]
"""Called with a value and the kind of its name; returns the value for the copy."""


def walk(value: Any, leaf: Leaf, kind: SecretKind = "") -> Any:
    """Returns a copy of a tree of mappings and sequences, with what `leaf` returns for keys and values."""
    if type(value) in _SCALARS:
        return leaf(value, kind)
    if isinstance(value, Mapping):
        return {_key(key, leaf): walk(item, leaf, _below(value, key, kind)) for key, item in value.items()}
    if isinstance(value, list | tuple):
        pairs = zip((None, *value), value, strict=False)
        return type(value)([walk(item, leaf, _after(before) or _lasting(kind)) for before, item in pairs])
    if isinstance(value, set | frozenset):
        return type(value)(walk(item, leaf, _lasting(kind)) for item in value)
    return leaf(value, kind)


def _key(key: Any, leaf: Leaf) -> Any:
    """Returns a key for the copy: a plain word is a name, even if it is also somebody's password."""
    return key if isinstance(key, str) and _PLAIN_NAME.fullmatch(key) else leaf(key, "")


def as_text(value: Any) -> str | None:
    """Returns text, bytes or a path as text; None for any other value."""
    if type(value) in _SCALARS:
        return value if type(value) is str else None
    if isinstance(value, bytes):
        return value.decode("utf-8", "replace")
    if isinstance(value, str):
        return str.__str__(value)
    return os.fspath(value) if isinstance(value, os.PathLike) else None


def _below(mapping: Mapping[Any, Any], key: Any, kind: SecretKind) -> SecretKind:
    """Returns the stronger kind of the key's own and that of the mapping; details such as `type` ignore the latter."""
    name = str(key)
    if name == "value":  # {name: DB_PASSWORD, value: …}
        name = str(mapping.get("name", mapping.get("key", name)))
    return ("" if is_about(name) else _lasting(kind)) or kind_of(name)


def _lasting(kind: SecretKind) -> SecretKind:
    """Returns the kind that values inside inherit: all below `secrets` is secret; `token` is about one text only."""
    return "secret" if kind == "secret" else ""


def _after(before: Any) -> SecretKind:
    """Returns the kind that a word of a command line gives to the next: `--password`, `db.password=`."""
    is_name = isinstance(before, str) and (before.startswith("-") or before.endswith("=")) and "=" not in before[:-1]
    return kind_of(before) if is_name else ""
