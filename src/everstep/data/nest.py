"""Functions over the nesting of a batch: dicts, tuples, named tuples and lists, with arrays as leaves.

    batch = {"image": images, "label": labels}
    sizes = nest.map_leaves(len, batch)          # {"image": 32, "label": 32}

Dicts keep the order in which their keys were inserted. `None` is an empty branch: it has no leaves and stays
where it is, so `(x, y, None)` is a batch without weights.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import numpy as np

from everstep.errors import UsageError


def map_leaves(fn: Callable[..., Any], tree: Any, *others: Any) -> Any:
    """Returns the same nesting with every leaf replaced by `fn(leaf)`.

    Args:
      fn: Called with one leaf of `tree`, followed by the leaf at the same place of each of `others`.
      tree: The nesting to follow.
      *others: Further trees that have at least the branches of `tree`.
    """
    if tree is None:
        return None
    if isinstance(tree, dict):
        return {key: map_leaves(fn, tree[key], *(other[key] for other in others)) for key in tree}
    if isinstance(tree, (list, tuple)):
        return _rebuild(tree, [map_leaves(fn, *parts) for parts in zip(tree, *others, strict=True)])
    return fn(tree, *others)


def flatten(tree: Any) -> list[Any]:
    """Returns the leaves from left to right."""
    return [leaf for _, leaf in walk(tree)]


def walk(tree: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Yields each leaf with the path that leads to it, written as Python would: `[0]['image']`."""
    if tree is None:
        return
    if not isinstance(tree, (dict, list, tuple)):
        yield path, tree
        return
    for step, branch in _branches(tree):
        yield from walk(branch, path + step)


def stack(trees: Sequence[Any]) -> Any:
    """Returns one tree whose leaves hold those of all `trees` along a new leading axis, in fresh memory.

    Raises:
      UsageError: The trees differ in nesting, or leaves at the same place differ in shape.
    """
    first = structure(trees[0])
    for tree in trees[1:]:
        if structure(tree) != first:
            raise UsageError(f"batches have different nestings: {first} and {structure(tree)}")
    return map_leaves(lambda *leaves: _stack_leaves(leaves), *trees)


def structure(tree: Any) -> Any:
    """Returns the nesting with `'*'` for every leaf: equal for trees of the same structure."""
    return map_leaves(lambda _: "*", tree)


def form(batch: Any) -> Any:
    """Returns the shape and type that each leaf of a batch has for one sample; the lengths of texts do not matter."""
    return map_leaves(lambda leaf: (leaf.shape[1:], leaf.dtype.kind if leaf.dtype.kind in "US" else leaf.dtype), batch)


def _stack_leaves(leaves: Sequence[Any]) -> np.ndarray:
    shapes = {np.shape(leaf) for leaf in leaves}
    if len(shapes) > 1:
        listed = ", ".join(map(str, sorted(shapes)))
        raise UsageError(f"cannot stack arrays of different shapes: {listed}", remedy="pad them to one shape")
    return np.stack(leaves)


def _branches(tree: Any) -> Iterable[tuple[str, Any]]:
    if isinstance(tree, dict):
        return [(f"[{key!r}]", branch) for key, branch in tree.items()]
    if hasattr(tree, "_fields"):
        return [(f".{name}", branch) for name, branch in zip(tree._fields, tree, strict=True)]
    return [(f"[{index}]", branch) for index, branch in enumerate(tree)]


def _rebuild(like: list | tuple, branches: list[Any]) -> Any:
    if isinstance(like, list):
        return branches
    if hasattr(like, "_fields"):
        return type(like)(*branches)
    return tuple(branches)
