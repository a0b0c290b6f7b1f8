"""Leaves of dicts in dicts, such as the logs of several tasks; by the names that TF Model Garden has for it."""

from collections.abc import Callable, Sequence
from typing import Any

from everstep.errors import UsageError, nearest


def get_leaf_nested_dict(d: dict[str, Any], keys: Sequence[str]) -> Any:
    """Returns the value that a list of keys leads to: `get_leaf_nested_dict({"a": {"b": 1}}, ["a", "b"])` is 1.

    Raises:
      UsageError: A key is missing on the way, or they lead to a dict.
    """
    leaf: Any = d
    for key in keys:
        if not isinstance(leaf, dict) or key not in leaf:
            remedy = nearest(str(key), leaf) if isinstance(leaf, dict) else f"{leaf!r} is not a dict"
            raise UsageError(f"there is no key {key!r}", key=str(list(keys)), remedy=remedy)
        leaf = leaf[key]
    if isinstance(leaf, dict):
        remedy = f"add one of {', '.join(map(repr, leaf))}"
        raise UsageError("leads to a dict, not to a value", key=str(list(keys)), remedy=remedy)
    return leaf


def cast_leaf_nested_dict(d: dict[str, Any], cast_fn: Callable[[Any], Any]) -> dict[str, Any]:
    """Replaces every leaf of a dict by what `cast_fn` makes of it, in place, and returns the dict."""
    for key, value in d.items():
        d[key] = cast_leaf_nested_dict(value, cast_fn) if isinstance(value, dict) else cast_fn(value)
    return d
