"""Classification by class: support, precision, recall, F1, and the mean of each metric."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from everstep.report.numbers import group_means, listed


def by_class(table: pa.Table, metrics: Mapping[str, np.ndarray], names: Sequence[str] | None) -> list[dict[str, Any]]:
    """Returns a row for each class that is a label or a prediction, over all samples.

    A share of nothing (the precision of a class that was never predicted) is None.

    Args:
      table: With `label` and `prediction`.
      metrics: The columns whose means are taken, over the samples that have the class as their label.
      names: Of all classes; None where they have only numbers.
    """
    labels, predicted = class_numbers(table["label"]), class_numbers(table["prediction"])
    count = max(len(names or ()), int(max(labels.max(initial=-1), predicted.max(initial=-1))) + 1)
    support, claimed, right = (_sizes(numbers, count) for numbers in (labels, predicted, labels[labels == predicted]))
    precision, recall, f1 = _shares(right, claimed), _shares(right, support), _shares(2 * right, claimed + support)
    means = {name: group_means(labels, count, values) for name, values in metrics.items()}
    return [
        {
            "class": i,
            "support": int(support[i]),
            "precision": precision[i],
            "recall": recall[i],
            "f1": f1[i],
            "means": [means[name][i] for name in metrics],
        }
        for i in range(count)
        if support[i] or claimed[i]
    ]


def sparse(confusion: Sequence[Sequence[int]] | None) -> dict[str, Any] | None:
    """Returns a confusion matrix as `size` and its `cells` that are not zero: label, prediction, count."""
    if confusion is None:
        return None
    matrix = np.asarray(confusion, np.int64)
    labels, predicted = np.nonzero(matrix)
    return {"size": len(matrix), "cells": np.stack([labels, predicted, matrix[labels, predicted]], axis=1).tolist()}


def class_numbers(column: pa.ChunkedArray) -> np.ndarray:
    """Returns a column of classes as integers, -1 for what is missing."""
    return column.cast(pa.int64()).fill_null(-1).to_numpy()


def _sizes(numbers: np.ndarray, count: int) -> np.ndarray:
    return np.bincount(numbers[numbers >= 0], minlength=count)


def _shares(part: np.ndarray, whole: np.ndarray) -> list[float | None]:
    with np.errstate(invalid="ignore", divide="ignore"):
        return listed(part / whole)
