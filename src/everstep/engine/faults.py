"""What is wrong with a batch for which a model or a loss cannot be traced, in a line that says what to do.

Looked for only once something has failed: whatever works is nobody's business.
"""

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

import keras

from everstep.data import nest
from everstep.data.special import RaggedArray, SparseArray
from everstep.errors import UsageError
from everstep.task.unpack import unpack
from everstep.types import Batch

_SPARSE_LOSS = ("`target.ndim - 1`", "same shape up until the last dimension")
"""How Keras's sparse cross-entropies begin to complain about labels of another shape, by backend."""

_DENSE_LOSS = ("must have the same rank", "must have the same shape.")
"""The same of those that want a number for each class."""


@contextlib.contextmanager
def explained_data(model: keras.Model, batches: Sequence[Batch | None]) -> Iterator[None]:
    """Says of an error inside the block what is wrong with the data, where its shapes show it.

    Raises:
      UsageError: Something failed, and this is why.
    """
    try:
        yield
    except UsageError:
        raise
    except Exception as error:
        for batch in batches:
            reason = None if batch is None else _wrong_inputs(model, batch) or _wrong_labels(batch, str(error))
            if reason:
                raise UsageError(reason) from error
        raise


def _wrong_inputs(model: keras.Model, batch: Batch) -> str:
    """Returns which input of the model gets arrays of another shape than it has."""
    expected = getattr(model, "inputs", None) or []
    given = _parts(unpack(batch)[0])
    names = [getattr(tensor, "name", "") for tensor in expected]
    if len(expected) != len(given):
        if len(expected) > 1 or (expected and len(given) > 1):
            return f"x: received {len(given)} arrays, but the model has {len(expected)} inputs: {', '.join(names)}"
        return ""
    for tensor, array in zip(expected, given, strict=True):
        wanted, shape = tuple(tensor.shape), tuple(array.shape)
        if len(wanted) not in (len(shape), len(shape) + 1, len(shape) - 1) or not _fits(wanted[1:], shape[1:]):
            which = f"its input {tensor.name!r}" if len(expected) > 1 else "its input"
            return (
                f"x: the samples have the shape {_sample(shape)}, but the model was built for {_sample(wanted)} at "
                f"{which}: reshape the data, or change keras.Input"
            )
    return ""


def _fits(wanted: tuple, shape: tuple) -> bool:
    """Whether a sample fits an input, but for an axis of length 1 that Keras adds or takes away."""
    if len(wanted) == len(shape):
        return all(one is None or one == other for one, other in zip(wanted, shape, strict=True))
    longer, shorter = (wanted, shape) if len(wanted) > len(shape) else (shape, wanted)
    return longer[-1] in (1, None) and _fits(longer[:-1], shorter)


def _sample(shape: tuple) -> str:
    return str(tuple(shape[1:]))


def _parts(tree: Any) -> list[Any]:
    """Returns the tensors of a nesting; a sparse or ragged one in parts has no shape to compare."""
    if any(isinstance(part, SparseArray | RaggedArray) for part in (tree if isinstance(tree, tuple) else (tree,))):
        return []
    return nest.flatten(tree)


def _wrong_labels(batch: Batch, error: str) -> str:
    """Returns whether labels are one-hot where class numbers are wanted, or the other way round."""
    labels = unpack(batch)[1]
    shape = getattr(labels, "shape", None)
    if shape is None:
        return ""
    if any(text in error for text in _SPARSE_LOSS) and len(shape) > 1 and shape[-1] > 1:
        return (
            f"y: the labels have {shape[-1]} numbers for each sample, as one-hot ones have, but the loss wants the "
            "number of a class: pass y.argmax(axis=-1), or use the loss categorical_crossentropy"
        )
    if any(text in error for text in _DENSE_LOSS) and (len(shape) < 2 or shape[-1] == 1):
        return (
            "y: the labels are one number for each sample, but the loss wants one for each class: pass "
            "keras.utils.to_categorical(y), or use the loss sparse_categorical_crossentropy"
        )
    return ""
