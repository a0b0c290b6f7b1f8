"""Samples that carry their number where their weight was, so that one can see which came through a pipeline."""

import itertools
from typing import Any

import numpy as np

from everstep.components.tf_datasets import is_dataset
from everstep.data.tf_data import load_tensorflow


class NumberedLoader:
    """A data loader whose training and validation samples have their number, from 0, in place of the weight.

    Args:
      loader: The loader; it is asked for the samples.
    """

    def __init__(self, loader: Any) -> None:
        self._loader = loader

    def create_training_generator(self) -> tuple[Any, int]:
        """Returns the training samples, numbered."""
        return _numbered(*self._loader.create_training_generator())

    def create_validation_generator(self) -> tuple[Any, int]:
        """Returns the validation samples, numbered."""
        return _numbered(*self._loader.create_validation_generator())


def lost_and_doubled(thirds: np.ndarray, count: int) -> tuple[list[int], list[int]] | None:
    """Returns which numbers did not come through, and which came twice; None where the numbers were changed."""
    numbers = thirds.reshape(-1)
    if numbers.dtype.kind not in "iuf" or (numbers != np.floor(numbers)).any():
        return None
    if (numbers < 0).any() or (numbers >= count).any() or (len(set(numbers.tolist())) == 1 and count > 1):
        return None
    times = np.bincount(numbers.astype(np.int64), minlength=count)
    return np.flatnonzero(times == 0).tolist(), np.flatnonzero(times > 1).tolist()


def _numbered(samples: Any, count: float) -> tuple[Any, int]:
    count = int(count)  # a loader may return a whole number as float
    if is_dataset(samples):
        tf = load_tensorflow("reading a tf.data.Dataset")
        return samples.enumerate().map(lambda row, one: (one[0], one[1], tf.cast(row % count, tf.float32))), count
    return ((one[0], one[1], float(row % count)) for row, one in zip(itertools.count(), samples, strict=False)), count
