"""Cosines of queries with a gallery, block by block: memory does not grow with their product."""

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

from everstep.bct.geometry import same_width
from everstep.bct.identities import as_labels, shared_codes
from everstep.errors import UsageError

BLOCK_BYTES = 64 << 20


class Block(NamedTuple):
    """Some queries against the whole gallery.

    Attributes:
      rows: Which queries.
      scores: Cosines, float32 (rows, gallery); minus infinity where query and gallery are the same image.
      mates: Where the labels agree, and the images are not the same.
    """

    rows: slice
    scores: np.ndarray
    mates: np.ndarray


class Comparison:
    """Queries to be looked for in a gallery.

    Vectors of different widths are compared in the gallery's: queries are cut, or filled with zeros, and normalised
    afterwards.

    Args:
      query: Embeddings of the queries (queries, any width).
      gallery: Embeddings of the gallery (items, any width).
      query_labels: What each query is: whole numbers or texts, of the same kind on both sides.
      gallery_labels: The same for the gallery.
      same_images: Whether query i and item i are one image; it is then no answer to itself.
      block_bytes: About how much memory a block of scores may take.

    Raises:
      UsageError: One side is empty, labels and vectors differ in number, labels cannot be compared, or a vector is
        not finite.
    """

    def __init__(
        self,
        query: Any,
        gallery: Any,
        query_labels: Any,
        gallery_labels: Any,
        *,
        same_images: bool = False,
        block_bytes: int = BLOCK_BYTES,
    ) -> None:
        gallery, gallery_labels = _checked(gallery, gallery_labels, "gallery")
        query, query_labels = _checked(query, query_labels, "query")
        if same_images and len(query) != len(gallery):
            raise UsageError(f"same_images: {len(query)} queries cannot be the {len(gallery)} images of the gallery")
        self._gallery = same_width(gallery, gallery.shape[1])
        self._query = same_width(query, gallery.shape[1])
        self._query_codes, self._gallery_codes = shared_codes(query_labels, gallery_labels)
        self._same, self._step = same_images, max(1, block_bytes // (4 * len(gallery)))

    def __len__(self) -> int:
        return len(self._query)

    def blocks(self) -> Iterator[Block]:
        """Yields all queries against the gallery; every time the same scores, to the bit."""
        for start in range(0, len(self._query), self._step):
            rows = slice(start, min(start + self._step, len(self._query)))
            scores = self._query[rows] @ self._gallery.T
            mates = self._query_codes[rows, None] == self._gallery_codes[None, :]
            if self._same:
                own = np.arange(rows.start, rows.stop)
                scores[own - rows.start, own] = -np.inf
                mates[own - rows.start, own] = False
            yield Block(rows, scores, mates)


def _checked(vectors: Any, labels: Any, side: str) -> tuple[np.ndarray, np.ndarray]:
    vectors, labels = np.asarray(vectors), as_labels(labels)
    if vectors.ndim != 2 or not vectors.shape[1]:
        raise UsageError(f"the {side} must be vectors (samples, size), received an array of shape {vectors.shape}")
    if not len(vectors):
        raise UsageError(f"the {side} is empty: there is nothing to compare")
    if labels.shape != (len(vectors),):
        raise UsageError(
            f"the {side} has {len(vectors)} vectors, but labels of shape {labels.shape}: one each; of one-hot labels, "
            "give argmax(axis=-1)"
        )
    if not np.isfinite(vectors).all():
        raise UsageError(f"the {side} has vectors that are not finite")
    return vectors, labels
