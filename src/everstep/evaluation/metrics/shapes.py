"""How labels and predictions fit together, and the error when they do not.

Batches come in as `(n, …)`; what goes out is flat, one row per sample, so that a metric is one line of NumPy.
"""

import numpy as np

from everstep.data import check_labels
from everstep.errors import UsageError

ROUNDING = 1e-3
"""How far a probability may be off: half-precision models, interpolated masks."""


def same(true: np.ndarray, pred: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Returns labels and predictions of one shape as `(n, values)`.

    A last axis of length one counts for nothing: masks `(n, h, w)` fit predictions `(n, h, w, 1)`.

    Raises:
      UsageError: The shapes do not fit.
    """
    if _without_last_one(true.shape) != _without_last_one(pred.shape):
        raise UsageError(f"y_true of shape {true.shape} does not fit y_pred of shape {pred.shape}: they must be equal")
    return flat(true), flat(pred)


def masks(y_true: np.ndarray, y_pred: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Returns two masks as `(n, pixels)`, the true one with values from 0 to 1.

    Raises:
      UsageError: The shapes do not fit, or the true mask has other values: it is scaled, or holds class numbers.
    """
    true, pred = same(y_true, y_pred)
    check_fractions(true, "y_true", "a mask is 0 and 1; divide by 255, or encode classes one-hot")
    return true, pred


def check_fractions(values: np.ndarray, what: str, remedy: str) -> None:
    """Checks that values are from 0 to 1, but for rounding; NaN is let through.

    Raises:
      UsageError: One is not; shows it.
    """
    if not values.size or values.dtype == bool:
        return
    low, high = np.fmin.reduce(values, axis=None), np.fmax.reduce(values, axis=None)
    if low < -ROUNDING or high > 1 + ROUNDING:
        raise UsageError(f"{what} holds {(low if low < -ROUNDING else high).item()!r}: {remedy}")


def classes(true: np.ndarray, pred: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Returns labels for predictions over classes, `(n, positions)` and `(n, positions, classes)`.

    The last axis of predictions is the classes. Labels are class numbers, with or without a last axis of length
    one, or one-hot; then they stay as they are, `(n, positions, classes)`.

    Raises:
      UsageError: The shapes do not fit, or a class number is out of range.
    """
    rows, count = len(pred), pred.shape[-1]
    positions = pred.reshape(rows, -1, count) if pred.size else pred.reshape(rows, 0, count)
    if true.shape == pred.shape:
        return true.reshape(positions.shape), positions
    if true.shape not in (pred.shape[:-1], (*pred.shape[:-1], 1)):
        raise UsageError(
            f"y_true of shape {true.shape} does not fit y_pred of shape {pred.shape}: "
            f"labels are class numbers of shape {pred.shape[:-1]} or one-hot of shape {pred.shape}"
        )
    check_labels(true, count, "the labels")
    return true.reshape(positions.shape[:-1]).astype(np.int64), positions


def is_binary(y_pred: np.ndarray) -> bool:
    """Returns whether predictions are one number per label: of two classes, the second's."""
    return y_pred.ndim == 1 or y_pred.shape[-1] == 1


def flat(values: np.ndarray) -> np.ndarray:
    """Returns `(n, …)` as `(n, values)`."""
    return values.reshape(len(values), int(np.prod(values.shape[1:], dtype=np.int64)))


def _without_last_one(shape: tuple[int, ...]) -> tuple[int, ...]:
    return shape[:-1] if len(shape) > 1 and shape[-1] == 1 else shape
