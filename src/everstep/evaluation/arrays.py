"""NumPy arrays from the tensors of any backend."""

from typing import Any

import numpy as np

from everstep.data import host_array, nest
from everstep.errors import UsageError


def host(tree: Any) -> Any:
    """Returns the same nesting with read-only NumPy arrays, so that no metric changes another one's data."""
    return nest.map_leaves(_host_leaf, listed(tree))


def listed(tree: Any) -> Any:
    """Returns a list of plain numbers or texts as an array: such a list is one column, not a nesting."""
    return np.asarray(tree) if isinstance(tree, list) and all(np.ndim(value) == 0 for value in tree) else tree


def as_text(value: Any) -> str:
    """Returns a value as text; bytes are decoded, and those that are not UTF-8 are escaped."""
    return value.decode("utf-8", errors="backslashreplace") if isinstance(value, bytes) else str(value)


def rows(tree: Any, what: str) -> int:
    """Returns the number of samples in a nesting of arrays.

    Args:
      tree: The nesting.
      what: A name for it in error messages.

    Raises:
      UsageError: A leaf has no batch axis, or leaves differ in length.
    """
    sizes = {path: np.shape(leaf)[0] if np.ndim(leaf) else None for path, leaf in nest.walk(tree)}
    if not sizes or None in sizes.values():
        described = nest.map_leaves(lambda leaf: f"{type(leaf).__name__} of shape {np.shape(leaf)}", tree)
        raise UsageError("must be arrays with a batch axis", key=what, received=described)
    if len(set(sizes.values())) > 1:
        raise UsageError("its parts have different numbers of samples", key=what, received=sizes)
    return next(size for size in sizes.values() if size is not None)


def at(tree: Any, index: Any) -> Any:
    """Returns one sample, or a slice of them, of a nesting of arrays."""
    return nest.map_leaves(lambda leaf: leaf[index], tree)


def _host_leaf(leaf: Any) -> np.ndarray:
    array = host_array(leaf).view()
    if array.dtype.kind == "V" and array.dtype.names is None:  # bfloat16 and similar types, which NumPy cannot compare
        array = array.astype(np.float32)
    array.flags.writeable = False
    return array
