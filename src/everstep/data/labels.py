"""Checks class labels on the host: a device computes a finite loss even for a label out of range."""

from typing import Any

import numpy as np

from everstep.errors import UsageError

IGNORED = -1
"""The label of a token to ignore: it counts neither in the loss nor in metrics."""


def check_labels(labels: Any, num_classes: int, where: str) -> None:
    """Checks that every label is a whole number from 0 to `num_classes - 1`.

    Args:
      labels: Integers, or floats with whole values, of any shape: a column, a batch, a stacked block.
      num_classes: How many classes the model has.
      where: What the labels are, for the message: `"the training labels"`.

    Raises:
      UsageError: A label is invalid; names the first one, its index, how many there are and what to do.
    """
    values = np.asarray(labels)
    if not (np.issubdtype(values.dtype, np.number) or values.dtype == bool):
        raise UsageError(f"{where} are of type {values.dtype}, not whole numbers", remedy="encode class labels")
    if np.iscomplexobj(values):
        raise UsageError(f"{where} are complex numbers, not whole numbers")
    if not values.size:
        return
    if np.issubdtype(values.dtype, np.floating):
        bad = ~((values >= 0) & (values < num_classes) & (values == np.floor(values)))  # NaN fails every comparison
        if not bad.any():
            return
    elif values.min() >= 0 and values.max() < num_classes:  # the usual case, in two fast passes
        return
    else:
        bad = (values < 0) | (values >= num_classes)
    index = tuple(int(i) for i in np.unravel_index(int(np.argmax(bad)), bad.shape))
    shown = index[0] if len(index) == 1 else index
    raise UsageError(
        f"{where} must be whole numbers from 0 to {num_classes - 1}, but {int(bad.sum())} of {values.size} "
        f"are not; the first is {values[index].item()} at index {shown}",
        remedy="correct the labels, or give the model an output for every class",
    )
