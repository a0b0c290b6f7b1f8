"""Types that every part of the package shares."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import numpy as np

Batch = Any
"""One batch: any nesting of dicts, tuples and lists of arrays, samples along the first axis."""

Logs = dict[str, float]
"""The results of a window of training or of an evaluation: name to number."""

State = dict[str, np.ndarray]
"""Every variable of a run by its stable key, integers as int64."""


@dataclasses.dataclass(frozen=True)
class ArrayParts:
    """What this process has of an array that is divided over several processes; all parts together are the array.

    Attributes:
      shape: The shape of the whole array.
      dtype: Its type.
      parts: Where each part begins, along each dimension, and the part. A process may have none.
    """

    shape: tuple[int, ...]
    dtype: np.dtype
    parts: Sequence[tuple[tuple[int, ...], np.ndarray]]


OwnState = Mapping[str, np.ndarray | ArrayParts]
"""A state as this process has it: like `State`, but with only its parts of what is divided over several processes."""


class StoredArray(Protocol):
    """An array in a checkpoint that is read when it is needed, as a whole or in part."""

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the whole array."""

    @property
    def dtype(self) -> np.dtype:
        """The type of its numbers."""

    def read(self, place: tuple[slice, ...] = ()) -> np.ndarray:
        """Returns the part at a place, by default everything."""

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray: ...


StoredState = Mapping[str, np.ndarray | StoredArray]
"""A state that was restored: like `State`, but what was divided over several processes may still have to be read."""

CLOCKS = ("steps_per_second", "samples_per_second", "mfu", "data_wait", "eval_seconds")
"""Names in logs that measure speed, not quality: they differ from run to run."""

StreamState = Mapping[str, Any]
"""A stream's position, as plain JSON values."""
