"""Which kind of problem a batch belongs to, by its shapes and values."""

from typing import Any, Literal

import numpy as np

Kind = Literal["classification", "regression", "segmentation", "values"]


def kind_of(y_true: Any, y_pred: Any) -> Kind:
    """Returns what labels and predictions look like; "values" where it cannot be told.

    Class numbers next to a prediction of one number are two classes only if the predictions are within 0 to 1: say
    `kind` where this guess is wrong.
    """
    if not (_is_numeric(y_true) and _is_numeric(y_pred)):
        return "values"
    if y_pred.ndim > 2:
        return "segmentation" if y_true.ndim > 2 else "values"
    if y_pred.ndim == 2 and y_pred.shape[1] > 1:
        return _of_vectors(y_true, y_pred)
    if y_true.size != len(y_true):
        return "values"
    return "classification" if _is_two_classes(y_true, y_pred) else "regression"


def _of_vectors(y_true: np.ndarray, y_pred: np.ndarray) -> Kind:
    if y_true.size == len(y_true):
        return "classification" if _are_class_numbers(y_true, y_pred.shape[1]) else "values"
    if y_true.shape != y_pred.shape:
        return "values"
    if _are_class_numbers(y_true, 2):
        return "classification" if (y_true.sum(axis=1) == 1).all() else "values"
    return "regression"


def _is_two_classes(y_true: np.ndarray, y_pred: np.ndarray) -> bool:
    return _are_class_numbers(y_true, 2) and bool(((y_pred >= 0) & (y_pred <= 1)).all())


def _are_class_numbers(values: np.ndarray, count: int) -> bool:
    return bool(((values >= 0) & (values < count) & (values == np.floor(values))).all())


def _is_numeric(values: Any) -> bool:
    return isinstance(values, np.ndarray) and values.dtype.kind in "biuf" and values.ndim > 0
