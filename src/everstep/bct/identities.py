"""Whose image is it? Labels of queries and gallery become numbers that are equal where the labels are."""

from typing import Any

import numpy as np

from everstep.errors import UsageError

_EXACT = 2.0**53  # up to here a float tells whole numbers apart


def as_labels(labels: Any) -> np.ndarray:
    """Returns labels as an array; a list of unlike things stays one, where NumPy would make texts of them all."""
    return np.asarray(labels) if hasattr(labels, "__array__") else np.asarray(labels, dtype=object)


def shared_codes(query: np.ndarray, gallery: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Returns the labels of both sides as small whole numbers.

    `1.0`, `True` and `1` are the same label, and so are a text and its UTF-8 bytes. A text and a number are never.

    Raises:
      UsageError: A side has labels of both kinds, or of another; or one side has texts and the other numbers.
    """
    first, second = _plain(query, "query"), _plain(gallery, "gallery")
    if (first.dtype.kind == "U") != (second.dtype.kind == "U"):
        raise UsageError(
            f"the query's labels are {_kind(first)} (the first is {_shown(first)}), the gallery's are {_kind(second)} "
            f"({_shown(second)}): nothing can agree, so write both the same way"
        )
    if np.result_type(first, second).kind == "f":  # int64 with uint64: a float would round them
        first, second = first.astype(object), second.astype(object)
    codes = np.unique(np.concatenate([first, second]), return_inverse=True)[1].reshape(-1).astype("int32")
    return codes[: len(first)], codes[len(first) :]


def _plain(labels: np.ndarray, side: str) -> np.ndarray:
    """Returns labels as texts or as whole numbers."""
    if labels.dtype.kind == "O":
        labels = _of_one_kind(labels, side)
    if labels.dtype.kind == "S":
        return np.asarray([one.decode("utf-8", "surrogateescape") for one in labels.tolist()], dtype=str)
    if labels.dtype.kind == "b":
        return labels.astype("int64")
    if labels.dtype.kind == "f":
        return _whole(labels, side)
    if labels.dtype.kind not in "Uiu":
        raise UsageError(f"the {side} has labels of type {labels.dtype}: write whole numbers or texts")
    return labels


def _of_one_kind(labels: np.ndarray, side: str) -> np.ndarray:
    """Returns an array of objects as one of texts or numbers."""
    held = [one.decode("utf-8", "surrogateescape") if isinstance(one, bytes) else one for one in labels.tolist()]
    texts = [one for one in held if isinstance(one, str)]
    numbers = [one for one in held if isinstance(one, bool | int | float | np.number | np.bool_)]
    if len(texts) + len(numbers) != len(held):
        odd = next(one for one in held if not isinstance(one, str | bool | int | float | np.number | np.bool_))
        raise UsageError(f"the {side} has a label {odd!r} ({type(odd).__name__}): write whole numbers or texts")
    if texts and numbers:
        raise UsageError(f"the {side} has texts ({texts[0]!r}) and numbers ({numbers[0]!r}) as labels: write one kind")
    return np.asarray(held)


def _whole(labels: np.ndarray, side: str) -> np.ndarray:
    odd = labels[~((np.abs(labels) <= _EXACT) & (labels == np.floor(labels)))]  # NaN fails every test
    if len(odd):
        raise UsageError(f"the {side} has the label {odd[0]}: write whole numbers (to 2**53 as floats) or texts")
    return labels.astype("int64")


def _kind(labels: np.ndarray) -> str:
    return "texts" if labels.dtype.kind == "U" else "numbers"


def _shown(labels: np.ndarray) -> str:
    return repr(labels[0].item())
