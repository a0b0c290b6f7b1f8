"""Vectors of different models made comparable, in NumPy."""

import numpy as np


def unit_rows(vectors: np.ndarray) -> np.ndarray:
    """Returns the rows with length one; a row of zeros stays as it is."""
    lengths = np.linalg.norm(vectors, axis=-1, keepdims=True)
    return vectors / np.where(lengths > 0, lengths, 1)


def same_width(vectors: np.ndarray, width: int) -> np.ndarray:
    """Returns unit rows of that width: the first components, or with zeros behind; normalised afterwards."""
    cut = vectors[:, :width]
    padded = np.pad(cut, [(0, 0), (0, width - cut.shape[1])])
    return unit_rows(padded.astype("float64")).astype("float32")
