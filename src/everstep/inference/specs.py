"""What a model takes, and whether data is of that kind."""

import dataclasses
from collections.abc import Sequence

import numpy as np

from everstep.errors import UsageError

_NUMBERS = "biuf"


@dataclasses.dataclass(frozen=True)
class Spec:
    """One input of a model.

    Attributes:
      name: What the model calls it.
      shape: The shape of a sample; None where any size goes.
      dtype: The type of its numbers, or `string`.
    """

    name: str
    shape: tuple[int | None, ...]
    dtype: str

    def __str__(self) -> str:
        return f"{self.dtype}[{', '.join('any' if size is None else str(size) for size in self.shape)}]"

    @property
    def size(self) -> int | None:
        """How many values a sample has; None where that is open."""
        return None if None in self.shape else int(np.prod([size or 0 for size in self.shape]))

    def cast(self, array: np.ndarray) -> np.ndarray:
        """Returns an array of a kind that was checked, in the type that the model takes.

        Raises:
          UsageError: A number is none, or the type has no room for it: the model would be asked about another one.
        """
        if self.dtype == "string":
            return array.astype(object)
        if array.size:
            self._require_numbers(array)
            self._require_room(array)
        return np.asarray(array, self._numpy)

    def _require_numbers(self, array: np.ndarray) -> None:
        if array.dtype.kind not in "biu" and not np.isfinite(np.asarray(array, np.float64)).all():
            raise UsageError(f"--input: a value for the model's input {self.name!r} is NaN or infinite: remove the row")

    def _require_room(self, array: np.ndarray) -> None:
        if array.dtype.kind not in "iu" or self._numpy.kind not in "iu":
            return
        low, high, room = array.min(), array.max(), np.iinfo(self._numpy)
        if low < room.min or high > room.max:
            raise UsageError(
                f"--input: received values from {low} to {high}, but the model's input {self.name!r} takes {self}, "
                f"from {room.min} to {room.max}: convert them"
            )

    @property
    def _numpy(self) -> np.dtype:
        import ml_dtypes

        return np.dtype(getattr(ml_dtypes, self.dtype, self.dtype))


def check(spec: Spec, shape: Sequence[int], dtype: np.dtype, where: str) -> None:
    """Refuses data of another shape or kind than an input takes.

    Whole numbers go where floats are taken, but not the other way round.

    Args:
      spec: The input.
      shape: The shape of a sample.
      dtype: The type of the values.
      where: What the data is, for the message.

    Raises:
      UsageError: It does not fit.
    """
    same = len(shape) == len(spec.shape) and all(
        want is None or want == size for want, size in zip(spec.shape, shape, strict=True)
    )
    if not same or not _is_kind(spec, dtype):
        raise UsageError(
            f"--input: {where} is {dtype.name}[{', '.join(map(str, shape))}] a sample, but the model's input "
            f"{spec.name!r} takes {spec}: {'convert' if same else 'reshape'} it"
        )


def _is_kind(spec: Spec, dtype: np.dtype) -> bool:
    if spec.dtype == "string":
        return dtype.kind in "SUTO"
    if spec.dtype.startswith(("int", "uint", "bool")):
        return dtype.kind in "biu"
    return dtype.kind in _NUMBERS or dtype.name.startswith(("bfloat", "float"))
