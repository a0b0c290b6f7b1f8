"""Gradients in the form that an update needs."""

from typing import Any

from keras import ops


def dense(gradient: Any, variable: Any) -> Any:
    """Returns a gradient as one array of the variable's shape and type; a tape gives that of an embedding as slices."""
    return ops.cast(ops.reshape(gradient, tuple(variable.shape)), variable.dtype)
