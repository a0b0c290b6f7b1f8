"""How a report shows a sample: as a small picture, a text, or some numbers."""

import base64
import io
import math
from typing import Any

import numpy as np
from PIL import Image

from everstep.data import host_array, nest
from everstep.evaluation.arrays import as_text

LONGER_SIDE = 128
"""The largest size of a picture, in pixels of its longer side."""

LETTERS = 2_000
NUMBERS = 256
SMALLEST_PLANE = 8
"""The smallest height and width of an array that is shown as a picture."""


def shown(value: Any) -> dict[str, Any]:
    """Returns one sample's input as `{"image": data URL}`, `{"text": …}` or `{"values": […]}`.

    If there are several inputs, the first is shown. Pictures are `(h, w)`, `(h, w, channels)`, or the middle plane of
    `(h, w, z, channels)`.
    """
    leaves = nest.flatten(value)
    if not leaves:
        return {}
    array = host_array(leaves[0])
    if array.dtype.kind in "OSU":
        return {"text": " ".join(as_text(part) for part in array.reshape(-1).tolist())[:LETTERS]}
    plane = _plane(array)
    return {"image": _data_url(_bytes(plane))} if plane is not None else {"values": _numbers(array)}


def mask_shown(value: Any, classes: int = 0) -> dict[str, Any]:
    """Returns a mask as a picture: one channel from black to white, several as one grey per class.

    A mask of class numbers has the same greys as one with a channel for each of the `classes`. An array that is not
    `(h, w)`, `(h, w, channels)` or `(h, w, z, channels)` is shown as by `shown`.
    """
    array = np.nan_to_num(host_array(value))
    array = array[:, :, array.shape[2] // 2] if array.ndim == 4 else array
    if array.ndim not in (2, 3) or not array.size:
        return shown(array)
    array = array[..., 0] if array.ndim == 3 and array.shape[-1] == 1 else array
    if array.ndim == 3:
        array = array.argmax(axis=-1) / (array.shape[-1] - 1)
    elif classes > 1:
        array = array / (classes - 1)
    plane = array.astype(np.float32)
    return {"image": _data_url(_bytes(plane / max(1.0, plane.max())))}


def picture(array: np.ndarray) -> np.ndarray | None:
    """Returns an array as a picture in bytes, (h, w) or (h, w, 3 or 4); None if it is not a picture."""
    plane = _plane(array)
    return None if plane is None else _bytes(plane)


def _plane(array: np.ndarray) -> np.ndarray | None:
    """Returns the plane to draw, `(h, w)` or `(h, w, 3 or 4)`; None if the array is not a picture."""
    if array.ndim == 4:
        array = array[:, :, array.shape[2] // 2]
    if array.ndim == 3 and array.shape[-1] not in (3, 4) and array.size:
        array = array[..., 0]
    return array if array.ndim in (2, 3) and min(array.shape[:2]) >= SMALLEST_PLANE else None


def _bytes(plane: np.ndarray) -> np.ndarray:
    """Returns a picture in bytes; numbers from 0 to 1 or to 255 keep their brightness, others are rescaled."""
    step = max(1, max(plane.shape[:2]) // (4 * LONGER_SIDE))
    plane = plane[::step, ::step]
    if plane.dtype == np.uint8:
        return plane
    numbers = np.nan_to_num(plane.astype(np.float32), nan=0.0, posinf=0.0, neginf=0.0)
    low, high = float(numbers.min()), float(numbers.max())
    if low < 0 or high > 255:
        numbers = (numbers - low) / ((high - low) or 1.0)
    scale = 255 if low < 0 or high > 255 or high <= 1 else 1
    return np.clip(np.rint(numbers * scale), 0, 255).astype(np.uint8)


def _data_url(picture: np.ndarray) -> str:
    image = Image.fromarray(np.ascontiguousarray(picture))
    image.thumbnail((LONGER_SIDE, LONGER_SIDE))
    data = io.BytesIO()
    image.save(data, format="PNG")
    return f"data:image/png;base64,{base64.b64encode(data.getvalue()).decode('ascii')}"


def _numbers(array: np.ndarray) -> list[float | None]:
    values = array.reshape(-1)[:NUMBERS].astype(np.float64).tolist()
    return [value if math.isfinite(value) else None for value in values]
