"""How well embeddings of one model find those of another: ranking, verification, update gain. NumPy only."""

import dataclasses
import math
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from everstep.errors import UsageError


def unit_rows(vectors: np.ndarray) -> np.ndarray:
    """Returns the rows with length one; a row of zeros stays as it is."""
    lengths = np.linalg.norm(vectors, axis=-1, keepdims=True)
    return vectors / np.where(lengths > 0, lengths, 1)


def same_width(vectors: np.ndarray, width: int) -> np.ndarray:
    """Returns unit rows of that width: the first components, or with zeros behind; normalised afterwards."""
    cut = vectors[:, :width]
    padded = np.pad(cut, [(0, 0), (0, width - cut.shape[1])])
    return unit_rows(padded.astype("float64")).astype("float32")


_EXACT = 2.0**53  # up to here a float holds every whole number


def as_labels(labels: Any) -> np.ndarray:
    """Returns labels as an array; a list of numbers and texts becomes an array of objects, not of texts alone."""
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
            f"({_shown(second)})",
            remedy="write both the same way",
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
        raise UsageError(f"has labels of type {labels.dtype}", key=side, remedy="write whole numbers or texts")
    return labels


def _of_one_kind(labels: np.ndarray, side: str) -> np.ndarray:
    """Returns an array of objects as one of texts or numbers."""
    held = [one.decode("utf-8", "surrogateescape") if isinstance(one, bytes) else one for one in labels.tolist()]
    texts = [one for one in held if isinstance(one, str)]
    numbers = [one for one in held if isinstance(one, bool | int | float | np.number | np.bool_)]
    if len(texts) + len(numbers) != len(held):
        other = next(one for one in held if not isinstance(one, str | bool | int | float | np.number | np.bool_))
        raise UsageError(
            f"a {type(other).__name__} cannot be a label",
            key=side,
            received=other,
            remedy="write whole numbers or texts",
        )
    if texts and numbers:
        reason = f"has texts ({texts[0]!r}) and numbers ({numbers[0]!r}) as labels"
        raise UsageError(reason, key=side, remedy="write one kind")
    return np.asarray(held)


def _whole(labels: np.ndarray, side: str) -> np.ndarray:
    others = labels[~((np.abs(labels) <= _EXACT) & (labels == np.floor(labels)))]  # NaN fails every test
    if len(others):
        raise UsageError(
            "which cannot be a label",
            key=side,
            received=others[0].item(),
            remedy="write whole numbers (to 2**53 as floats) or texts",
        )
    return labels.astype("int64")


def _kind(labels: np.ndarray) -> str:
    return "texts" if labels.dtype.kind == "U" else "numbers"


def _shown(labels: np.ndarray) -> str:
    return repr(labels[0].item())


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
    """Queries and the gallery they are compared with.

    Vectors of different widths are compared in the gallery's: queries are cut, or filled with zeros, and normalised
    afterwards.

    Args:
      query: Embeddings of the queries (queries, any width).
      gallery: Embeddings of the gallery (items, any width).
      query_labels: The class of each query: whole numbers or texts, of the same kind on both sides.
      gallery_labels: The same for the gallery.
      same_images: Whether query i and item i are one image; an image is never compared with itself.
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
            reason = f"{len(query)} queries cannot be the {len(gallery)} images of the gallery"
            raise UsageError(reason, key="same_images")
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
        raise UsageError(f"expected vectors (samples, size), not an array of shape {vectors.shape}", key=side)
    if not len(vectors):
        raise UsageError("is empty", key=side, remedy="pass at least one vector")
    if labels.shape != (len(vectors),):
        raise UsageError(
            f"has {len(vectors)} vectors, but labels of shape {labels.shape}",
            key=side,
            remedy="pass one label each; of one-hot labels, argmax(axis=-1)",
        )
    if not np.isfinite(vectors).all():
        raise UsageError("has vectors that are not finite", key=side)
    return vectors, labels


@dataclasses.dataclass(frozen=True)
class Ranking:
    """The result of each query.

    Attributes:
      precision: Average precision; NaN for a query without a mate in the gallery.
      place: The place of its best mate, 1 for the first; 0 without one.
      best_mate: The highest score of a mate; minus infinity without one.
      best_other: The highest score of anything else; minus infinity where all are mates.
    """

    precision: np.ndarray
    place: np.ndarray
    best_mate: np.ndarray
    best_other: np.ndarray

    @property
    def mated(self) -> np.ndarray:
        """Which queries have a mate in the gallery."""
        return self.place > 0

    def mean_average_precision(self) -> float:
        """Returns the mean over the queries that have a mate.

        Raises:
          UsageError: None has.
        """
        return float(self.precision[self._require_mated()].mean())

    def top(self, k: int) -> float:
        """Returns the share of queries with a mate that find one among the first `k`: the CMC curve at `k`.

        Raises:
          UsageError: No query has a mate, or `k` is below 1.
        """
        if k < 1:
            raise UsageError("must be at least 1", key="k", received=k)
        return float((self.place[self._require_mated()] <= k).mean())

    def tpir_at_fpir(self, fpir: float) -> float:
        """Returns the share of queries with a mate that find one first, and above a false alarm rate's threshold.

        The threshold is the lowest at which at most that share of the queries without a mate find anything.

        Raises:
          UsageError: The rate is not from 0 to below 1, or there are no queries with, or none without, a mate.
        """
        if not 0 <= fpir < 1:
            raise UsageError("must be from 0 to below 1", key="fpir", received=fpir)
        mated = self._require_mated()
        alarms = self.best_other[~self.mated]
        if not len(alarms):
            raise UsageError("every query has a mate in the gallery", remedy="add queries without one")
        allowed = math.floor(fpir * len(alarms) + 1e-9)
        threshold = np.sort(alarms)[::-1][allowed]
        best = self.best_mate[mated]
        return float(((best > self.best_other[mated]) & (best > threshold)).mean())

    def _require_mated(self) -> np.ndarray:
        if not self.mated.any():
            raise UsageError("no query has a mate in the gallery", remedy="pass labels that are in both")
        return self.mated


def rank(query: Any, gallery: Any, query_labels: Any, gallery_labels: Any, **settings: Any) -> Ranking:
    """Returns the result of each query in the gallery.

        found = rank(new_vectors, old_vectors, labels, labels, same_images=True)
        found.mean_average_precision(), found.top(1)

    The arguments are those of `Comparison`.

    Raises:
      UsageError: They do not fit.
    """
    return ranking(Comparison(query, gallery, query_labels, gallery_labels, **settings))


def ranking(comparison: Comparison) -> Ranking:
    """Returns the result of each query of a comparison."""
    count = len(comparison)
    found = Ranking(
        precision=np.full(count, np.nan),
        place=np.zeros(count, "int64"),
        best_mate=np.full(count, -np.inf, "float32"),
        best_other=np.full(count, -np.inf, "float32"),
    )
    for block in comparison.blocks():
        _add(found, block)
    return found


def _add(found: Ranking, block: Block) -> None:
    found.best_mate[block.rows] = np.where(block.mates, block.scores, -np.inf).max(axis=1)
    found.best_other[block.rows] = np.where(block.mates, -np.inf, block.scores).max(axis=1)
    mated = block.mates.any(axis=1)
    for offset in np.flatnonzero(mated):
        row, mates = block.scores[offset], block.mates[offset]
        query = block.rows.start + offset
        found.precision[query], found.place[query] = _one(np.sort(row), np.sort(row[mates]))


def _one(scores: np.ndarray, mates: np.ndarray) -> tuple[float, int]:
    """Returns average precision and the best mate's place, from sorted scores of all and of the mates.

    At each mate's score: how many of all that score as high or higher are mates. Equal scores are one step.
    """
    above = len(scores) - np.searchsorted(scores, mates, "left")
    hits = len(mates) - np.searchsorted(mates, mates, "left")
    return float((hits / above).mean()), int(above[-1] - hits[-1] + 1)


_BITS = 16
_HALF = 1 << _BITS
_ROWS = 64


def tar_at_far(
    query: Any,
    gallery: Any,
    query_labels: Any,
    gallery_labels: Any,
    far: Sequence[float] = (1e-3,),
    **settings: Any,
) -> list[float]:
    """Returns the true accept rate at each false accept rate.

    A pair is a query and an item of the gallery; of the same images, no pair is an image with itself. The threshold is
    the lowest at which at most that share of the false pairs is accepted.

    Args:
      query: Embeddings of the queries.
      gallery: Embeddings of the gallery.
      query_labels: The class of each query.
      gallery_labels: The class of each item of the gallery.
      far: False accept rates.
      **settings: Further arguments of `Comparison`.

    Raises:
      UsageError: A rate is not from 0 to below 1, or there are no true or no false pairs.
    """
    return accept_rates(Comparison(query, gallery, query_labels, gallery_labels, **settings), far)


def accept_rates(comparison: Comparison, far: Sequence[float]) -> list[float]:
    """Returns the true accept rates of a comparison; see `tar_at_far`."""
    for rate in far:
        if not 0 <= rate < 1:
            raise UsageError("must be from 0 to below 1", key="far", received=rate)
    upper = np.zeros((2, _HALF), "int64")
    for block in comparison.blocks():
        for kind, codes in _pairs(block):
            upper[kind] += _counted(codes >> np.uint32(_BITS))
    totals = upper.sum(axis=1)
    if not totals.all():
        raise UsageError(f"there are {totals[1]} true and {totals[0]} false pairs", remedy="pass data with both kinds")
    return _rates(comparison, upper, [math.floor(rate * int(totals[0]) + 1e-9) for rate in far])


def _rates(comparison: Comparison, upper: np.ndarray, allowed: list[int]) -> list[float]:
    """Returns the share of true pairs above the false pair that comes after the `allowed` highest ones."""
    places = [_from_top(upper[0], count) for count in allowed]
    lower = {bucket: np.zeros((2, _HALF), "int64") for bucket, _ in places}
    for block in comparison.blocks():
        for kind, codes in _pairs(block):
            for bucket, counts in lower.items():
                inside = codes[(codes >> np.uint32(_BITS)) == bucket]
                counts[kind] += _counted(inside & np.uint32(_HALF - 1))
    rates = []
    for bucket, left in places:
        digit, _ = _from_top(lower[bucket][0], left)
        accepted = upper[1, bucket + 1 :].sum() + lower[bucket][1, digit + 1 :].sum()
        rates.append(float(accepted / upper[1].sum()))
    return rates


def _from_top(counts: np.ndarray, skip: int) -> tuple[int, int]:
    """Returns the bucket that holds the next one after the `skip` highest, and how many of those are in it."""
    above = np.cumsum(counts[::-1])
    position = int(np.searchsorted(above, skip, "right"))
    before = int(above[position - 1]) if position else 0
    return len(counts) - 1 - position, skip - before


def _pairs(block: Block) -> Iterator[tuple[int, np.ndarray]]:
    """Yields the false (0) and the true (1) pairs of a block, some rows at a time, as numbers ordered as the scores."""
    for start in range(0, len(block.scores), _ROWS):
        scores, mates = block.scores[start : start + _ROWS], block.mates[start : start + _ROWS]
        yield 0, _ordered(scores[~mates & (scores > -np.inf)])
        yield 1, _ordered(scores[mates])


def _counted(digits: np.ndarray) -> np.ndarray:
    return np.bincount(digits, minlength=_HALF)


def _ordered(scores: np.ndarray) -> np.ndarray:
    """Returns uint32 numbers that are ordered as the float32 scores are."""
    bits = (scores + np.float32(0)).view("uint32")  # adding zero makes -0 the same as 0
    flipped = (bits.view("int32") >> 31).view("uint32") | np.uint32(1 << 31)
    return bits ^ flipped


def is_compatible(cross: float, old: float) -> bool:
    """Returns whether new queries find more in the old gallery than old queries do: the empirical criterion.

    Args:
      cross: A retrieval figure of new queries in the old gallery.
      old: The same figure of old queries in it.
    """
    return cross > old


def update_gain(cross: float, old: float, paragon: float) -> float:
    """Returns the share of the possible gain that comes without computing the gallery anew.

    `(cross - old) / (paragon - old)`: 0 is no better than the old model, 1 as good as a gallery computed anew. NaN
    where the paragon is not better than the old model, so that there is nothing to gain.

    Args:
      cross: A retrieval figure of new queries in the old gallery.
      old: The same figure of old queries in it.
      paragon: The same figure of the best new model, trained without regard to the old one, in its own gallery.
    """
    return (cross - old) / (paragon - old) if paragon > old else math.nan
