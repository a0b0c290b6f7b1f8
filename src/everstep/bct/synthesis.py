"""Weights for classes that the old classifier never saw: the mean direction of their old embeddings."""

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from everstep.bct.geometry import unit_rows
from everstep.bct.old import OldModel
from everstep.errors import UsageError


def class_means(
    old: OldModel, batches: Iterable[tuple[Any, Any]], names: Sequence[str], needed: Sequence[int]
) -> np.ndarray:
    """Returns a unit column for every class, float32 (old size, classes): the mean of its samples' unit embeddings.

    Args:
      old: The old model; in inference mode, as always.
      batches: Pairs (x, labels) of the training samples, without augmentation.
      names: The classes; label 0 is the first.
      needed: The labels whose columns will be used; the others' may be zeros, where there is no sample.

    Raises:
      UsageError: A label is out of range, or a class that is needed has no sample, or samples that cancel each other
        out.
    """
    sums, counts = np.zeros((len(names), old.size)), np.zeros(len(names), "int64")
    for x, labels in batches:
        flat = np.asarray(labels).reshape(-1).astype("int64")
        if flat.size and not 0 <= flat.min() <= flat.max() < len(names):
            raise UsageError(f"bct: a label is {flat.min()} or {flat.max()}, but there are {len(names)} classes")
        np.add.at(sums, flat, unit_rows(old.embed(x, max(len(flat), 1))))
        counts += np.bincount(flat, minlength=len(names))
    _require(needed, counts, sums, names)
    return unit_rows(sums).T.astype("float32")


def _require(needed: Sequence[int], counts: np.ndarray, sums: np.ndarray, names: Sequence[str]) -> None:
    empty = [names[label] for label in needed if not counts[label]]
    if empty:
        raise UsageError(
            f"bct: no training sample is of class {empty[0]!r}{f' and {len(empty) - 1} more' if empty[1:] else ''}: "
            "weights cannot be synthesised for it; add samples, or take it out of the classes"
        )
    lost = [names[label] for label in needed if not np.linalg.norm(sums[label]) > 0]
    if lost:
        raise UsageError(
            f"bct: the old embeddings of class {lost[0]!r} are zero on average: no weights follow from them"
        )
