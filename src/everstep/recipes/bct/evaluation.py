"""Compares an old and a new model: queries of each in the galleries of both."""

import dataclasses
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import keras
import numpy as np

import everstep.recipes.bct.model  # noqa: F401  registers `BCTModel`, which a file may hold
from everstep.errors import UsageError
from everstep.recipes.bct.embedding import embed
from everstep.recipes.bct.metrics import (
    Comparison,
    accept_rates,
    as_labels,
    is_compatible,
    ranking,
    update_gain,
)
from everstep.recipes.bct.old import load_model

_MAP = "mAP"


@dataclasses.dataclass(frozen=True)
class LabeledSamples:
    """Inputs with their labels."""

    x: Any
    y: np.ndarray


@dataclasses.dataclass(frozen=True)
class BctEvaluation:
    """The figures.

    Attributes:
      rows: Figures by name for `old/old`, `new/old`, `new/new` (the queries' model, the gallery's model) and, where
        one was given, `paragon`. A figure that these data cannot give is NaN.
      metric: The figure that criterion and gain are about.
      gain: The update gain; NaN where there is nothing to gain.
      paragon: The row that the gain is measured against: `paragon`, else `new/new`.
      compatible: The empirical criterion.
    """

    rows: Mapping[str, Mapping[str, float]]
    metric: str
    gain: float
    paragon: str
    compatible: bool


def evaluate(
    old: keras.Model | str | Path,
    new: keras.Model | str | Path,
    data: tuple[Any, Any],
    *,
    gallery: tuple[Any, Any] | None = None,
    paragon: keras.Model | str | Path | None = None,
    far: float = 1e-3,
    fpir: float = 1e-2,
    top: Sequence[int] = (1, 5),
    metric: str = _MAP,
    batch_size: int = 256,
) -> BctEvaluation:
    """Compares an old and a new embedding model.

        evaluate("runs/old", "runs/new", (images, labels)).gain

    Args:
      old: A model with an embedding in it, a `.keras` file, or a finished run's directory.
      new: The same for the new model.
      data: Queries and their labels.
      gallery: The gallery and its labels; None, or the same images, compares the queries with each other, no image
        with itself.
      paragon: The best new model trained without regard to the old one; None: the gain is measured against `new`.
      far: The false accept rate of `TAR@FAR`.
      fpir: The false alarm rate of `TPIR@FPIR`.
      top: For which k to give `top-k`.
      metric: The figure that criterion and gain are about.
      batch_size: How many samples are embedded at once.

    Raises:
      UsageError: A model or the data cannot be used.
    """
    queries = _samples(data, "data")
    same = gallery is None or _same(queries, _samples(gallery, "gallery"))
    items = queries if gallery is None else _samples(gallery, "gallery")
    sides = {"old": old, "new": new, **({} if paragon is None else {"paragon": paragon})}
    vectors = {name: _vectors(name, model, queries, items, same, batch_size) for name, model in sides.items()}
    pairs = {"old/old": ("old", "old"), "new/old": ("new", "old"), "new/new": ("new", "new")}
    pairs |= {"paragon": ("paragon", "paragon")} if paragon is not None else {}
    rows = {}
    for row, (asking, held) in pairs.items():
        both = vectors[asking][0], vectors[held][1]
        rows[row] = _figures(Comparison(*both, queries.y, items.y, same_images=same), far, fpir, top)
    return _judged(rows, metric, "paragon" if paragon is not None else "new/new")


def _judged(rows: Mapping[str, Mapping[str, float]], metric: str, best: str) -> BctEvaluation:
    if metric not in rows["old/old"]:
        raise UsageError(f"there are {', '.join(rows['old/old'])}", key="metric", received=metric)
    old, cross, paragon = (rows[row][metric] for row in ("old/old", "new/old", best))
    if math.isnan(old):
        raise UsageError(f"{metric} cannot be computed from these data", key="metric", remedy="name another")
    return BctEvaluation(rows, metric, update_gain(cross, old, paragon), best, is_compatible(cross, old))


def _figures(comparison: Comparison, far: float, fpir: float, top: Sequence[int]) -> dict[str, float]:
    found = ranking(comparison)
    figures = {_MAP: found.mean_average_precision(), **{f"top-{k}": found.top(k) for k in top}}
    has_false_pairs = bool(np.isfinite(found.best_other).any())  # with one class alone there are none
    figures[f"TAR@FAR={far:g}"] = accept_rates(comparison, [far])[0] if has_false_pairs else math.nan
    figures[f"TPIR@FPIR={fpir:g}"] = math.nan if found.mated.all() else found.tpir_at_fpir(fpir)
    return figures


def _samples(data: tuple[Any, Any], name: str) -> LabeledSamples:
    x, y = data
    y = as_labels(y)
    y = y.reshape(-1) if y.shape[1:] == (1,) else y
    if y.ndim != 1:
        raise UsageError(
            f"the labels have the shape {y.shape}; one per sample is expected",
            key=name,
            remedy="of one-hot labels, give argmax(axis=-1)",
        )
    lengths = {len(leaf) for leaf in keras.tree.flatten(x)}
    if lengths != {len(y)}:
        raise UsageError(f"there are {len(y)} labels for {sorted(lengths)} samples", key=name, remedy="one each")
    if not len(y):
        raise UsageError("is empty", key=name, remedy="pass at least one sample")
    return LabeledSamples(x, y)


def _same(one: LabeledSamples, other: LabeledSamples) -> bool:
    first, second = keras.tree.flatten(one.x), keras.tree.flatten(other.x)
    return len(first) == len(second) and all(np.array_equal(a, b) for a, b in zip(first, second, strict=True))


def _vectors(
    name: str, model: Any, queries: LabeledSamples, items: LabeledSamples, same: bool, batch_size: int
) -> tuple[np.ndarray, np.ndarray]:
    """Returns the embeddings of queries and of gallery items by one model."""
    loaded = model if isinstance(model, keras.Model) else load_model(model, name)
    first = embed(loaded, queries.x, batch_size)
    return first, first if same else embed(loaded, items.x, batch_size)
