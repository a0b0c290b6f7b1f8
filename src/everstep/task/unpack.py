"""What a batch is made of: features, labels and sample weights, as Keras unpacks them."""

import contextlib
from collections.abc import Iterator
from typing import Any

from everstep.data.special import RaggedArray, SparseArray
from everstep.errors import UsageError
from everstep.types import Batch


def unpack(inputs: Batch) -> tuple[Any, Any, Any]:
    """Returns features, labels and sample weights of `x`, `(x,)`, `(x, y)` or `(x, y, weight)`.

    Labels and weights that the batch does not have are None: inputs never serve as labels. A model that learns to
    reproduce its inputs is given `(x, x)`.
    """
    alone = isinstance(inputs, SparseArray | RaggedArray)
    if isinstance(inputs, list | tuple) and 1 <= len(inputs) <= 3 and not alone:
        x, y, weight = (*inputs, None, None)[:3]
        return x, y, weight
    return inputs, None, None


@contextlib.contextmanager
def labels_explained(features: Any, labels: Any) -> Iterator[None]:
    """Around a loss or metrics: where they fail because the batch has no labels, says so.

    Raises:
      UsageError: They failed, and there are no labels, or only the features in their place.
    """
    try:
        yield
    except UsageError:
        raise
    except Exception as error:
        if labels is not None and labels is not features:
            raise
        raise UsageError(
            "the batches are inputs without labels, but the loss or a metric compares with labels: make them (x, y) or "
            "(x, y, sample_weight); for a model that learns to reproduce its inputs, (x, x)"
        ) from error
