"""A model and data that do not go together, in words for who has passed both.

Keras and the backends say what failed deep inside, with shapes in colours and forty frames. Where none of the frames
is code of the user's own, the reason is in what was passed: the error says that, with the shapes of a batch.
"""

import contextlib
import re
from collections.abc import Iterator
from typing import Any

import keras
import numpy as np

from everstep.data import nest
from everstep.errors import TrainingError, UsageError, own_frames, plain_text, wants_traceback
from everstep.task.task import unpack
from everstep.types import Batch

_AROUND = re.compile(r"^Exception encountered when calling \S+\. |Arguments received by .*$")
_SHAPES = re.compile("shape|rank|dimension|broadcast|size of tensor|size mismatch", re.IGNORECASE)
_RANKS = ("must have the same shape up until the last dimension", "must have rank (ndim) `target.ndim - 1`")


@contextlib.contextmanager
def misfits_explained(model: keras.Model, batch: Batch) -> Iterator[None]:
    """Inside the block, where a model meets a first batch, errors that no code of the user's raises are explained.

    Raises:
      UsageError: Model and batch do not go together.
    """
    try:
        yield
    except (UsageError, TrainingError, NotImplementedError):
        raise
    except Exception as error:
        if own_frames(error, below=__file__) or not _SHAPES.search(plain_text(error)):
            raise
        raise UsageError(_explanation(error, model, batch)) from (error if wants_traceback() else None)


def _explanation(error: Exception, model: keras.Model, batch: Batch) -> str:
    text = _AROUND.sub("", plain_text(error)).strip().rstrip(".")
    features, labels, _ = unpack(batch)
    if "incompatible with the layer" in text or "expects" in text and "input(s)" in text:
        wanted = getattr(model, "input_shape", None)
        wanted = f"takes inputs of shape {wanted}" if wanted else "does not take such inputs"
        return f"x: the model {wanted}, and a batch is {_shapes(features)}: {text}: change the data, or keras.Input"
    if any(part in text for part in _RANKS):
        return (
            f"y: the loss takes the numbers of classes, and a batch of labels is {_shapes(labels)}: {text}: pass "
            'y.argmax(axis=-1), or compile with loss="categorical_crossentropy"'
        )
    parts = zip(("x", "y", "sample_weight"), unpack(batch), strict=True)
    listed = "; ".join(f"{name} {_shapes(part)}" for name, part in parts if part is not None)
    outputs = getattr(model, "output_shape", None)
    given = f"a batch of {listed}" + (f", outputs {outputs}" if outputs else "")
    return f"model and data do not fit together: {type(error).__name__}: {text} ({given}): change one of them"


def _shapes(part: Any) -> str:
    leaves = [np.asarray(leaf) for leaf in nest.flatten(part)]
    return ", ".join(f"{leaf.dtype}{list(leaf.shape)}" for leaf in leaves)
