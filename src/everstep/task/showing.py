"""What a task shows of an evaluation where it says nothing of its own: pictures with truth and prediction."""

from collections.abc import Mapping
from typing import Any

import numpy as np

SMALLEST = 8
"""Arrays that are less high or wide are no pictures."""


def classified(features: Any, labels: Any, outputs: Any) -> Mapping[str, Any]:
    """Returns pictures with the class they are of and the class they are taken for; nothing where these are none.

    Args:
      features: Pictures (n, h, w) or (n, h, w, 1, 3 or 4).
      labels: Whole numbers (n,) or (n, 1), or one for each class (n, classes).
      outputs: A number for each class (n, classes); the largest is the prediction.
    """
    arrays = (features, labels, outputs)
    if not all(isinstance(array, np.ndarray) for array in arrays) or not _are_pictures(features):
        return {}
    if outputs.ndim != 2 or outputs.shape[1] < 2 or labels.dtype.kind not in "iuf":
        return {}
    truth = labels.argmax(axis=1) if labels.shape == outputs.shape else labels.reshape(len(labels), -1)[:, 0]
    pairs = zip(truth.tolist(), outputs.argmax(axis=1).tolist(), strict=True)
    return {"predictions": (features, [f"truth {int(one)}, prediction {other}" for one, other in pairs])}


def _are_pictures(array: np.ndarray) -> bool:
    channels = array.shape[3] if array.ndim == 4 else 1
    return array.ndim in (3, 4) and min(array.shape[1:3]) >= SMALLEST and channels in (1, 3, 4)
