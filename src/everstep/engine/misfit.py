"""A model and data that do not go together, in words for who has passed both.

Keras and the backends say what failed deep inside, with shapes in colours and forty frames. Looked for only once
something has failed: whatever works is nobody's business.
"""

import contextlib
import re
from collections.abc import Iterator, Sequence
from typing import Any

import keras

from everstep.data import nest
from everstep.data.special import RaggedArray, SparseArray
from everstep.errors import TrainingError, UsageError, own_frames, plain_text, wants_traceback
from everstep.task.unpack import unpack
from everstep.types import Batch

_AROUND = re.compile(r"^Exception encountered when calling \S+\. |Arguments received by .*$")
_SHAPES = re.compile("shape|rank|dimension|broadcast|size of tensor|size mismatch", re.IGNORECASE)

_SPARSE_LOSS = ("`target.ndim - 1`", "same shape up until the last dimension")
"""How Keras's sparse cross-entropies begin to complain about labels of another shape, by backend."""

_DENSE_LOSS = ("must have the same rank", "must have the same shape.")
"""The same of those that want a number for each class."""


@contextlib.contextmanager
def misfits_explained(model: keras.Model, batches: Sequence[Batch | None]) -> Iterator[None]:
    """Inside the block, where a model meets its first batches, errors say what does not go together.

    An error of which the shapes show no reason is left as it is, where code of the user's own took part in it.

    Raises:
      UsageError: Model and data do not go together.
    """
    try:
        yield
    except (UsageError, TrainingError, NotImplementedError):
        raise
    except Exception as error:
        text, given = _AROUND.sub("", plain_text(error)).strip().rstrip("."), [b for b in batches if b is not None]
        reasons = [reason for batch in given if (reason := _wrong_inputs(model, batch) or _wrong_labels(batch, text))]
        if not reasons and not own_frames(error, below=__file__) and _SHAPES.search(text):
            reasons = [_misfit(error, text, model, given[0])]
        if not reasons:
            raise
        raise UsageError(reasons[0]) from (error if wants_traceback() else None)


def _wrong_inputs(model: keras.Model, batch: Batch) -> str:
    """Returns which input of the model gets arrays of another shape than it has."""
    expected = getattr(model, "inputs", None) or []
    features, names = unpack(batch)[0], [getattr(tensor, "name", "") for tensor in expected]
    if isinstance(features, dict):
        if not set(names) <= set(features):  # Keras finds them in an order of its own
            return ""
        features = [features[name] for name in names]
    given = _parts(features)
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
    if any(isinstance(part, SparseArray | RaggedArray) for part in (tree if type(tree) in (tuple, list) else (tree,))):
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


def _misfit(error: Exception, text: str, model: keras.Model, batch: Batch) -> str:
    parts = zip(("x", "y", "sample_weight"), unpack(batch), strict=True)
    listed = "; ".join(f"{name} {_shapes(part)}" for name, part in parts if part is not None)
    outputs = getattr(model, "output_shape", None)
    given = f"a batch of {listed}" + (f", outputs {outputs}" if outputs else "")
    return f"model and data do not fit together: {type(error).__name__}: {text} ({given}): change one of them"


def _shapes(part: Any) -> str:
    return ", ".join(f"{leaf.dtype}{list(leaf.shape)}" for leaf in nest.flatten(part))
