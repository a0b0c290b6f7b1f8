"""The model's own metrics on an export: what `model.evaluate` would return, batch by batch; an estimator's score."""

import contextlib
import math
import sys
from collections.abc import Iterator, Mapping
from typing import Any, Protocol

import keras
import numpy as np

from everstep.projects.components.losses import with_axes


class ModelMetrics(Protocol):
    """Collects batches with their predictions, and returns metrics over all of them."""

    def add(self, x: Any, y: Any, weight: Any, y_pred: Any) -> None:
        """Adds a batch."""

    def result(self) -> dict[str, float]:
        """Returns the metrics by name."""


class CompiledMetrics:
    """The loss and the metrics that a model was compiled with, as `model.evaluate` computes them.

    The model predicts every batch itself: Keras's losses use more than the values of a prediction, such as the logits
    behind a softmax and the mask of a sequence, and the losses of `add_loss` depend on the batch.

    Args:
      model: The model with the exported weights.
    """

    def __init__(self, model: keras.Model) -> None:
        self._model, self._means = model, StepMeans(model)
        model.reset_metrics()

    def add(self, x: Any, y: Any, weight: Any, y_pred: Any) -> None:
        """Adds a batch; the exported model's predictions for it are not used."""
        rows = len(keras.tree.flatten(y)[0])
        x, y, weight = with_axes(self._model, (x, y, weight))
        with _keeping_metrics(self._model):
            logs = self._model.test_on_batch(x, y, sample_weight=weight, return_dict=True)
        self._means.add(logs, rows)

    def result(self) -> dict[str, float]:
        """Returns the mean loss, every sample counted once, and the metrics."""
        return self._means.result()


class StepMeans:
    """What `test_step` returns, over all batches.

    The result of one of the model's metrics is used as it is. Any other value that a custom `test_step` returns is of
    its batch only: the result is its mean, weighted by the number of samples.
    """

    def __init__(self, model: keras.Model) -> None:
        self._model, self._rows = model, 0
        self._last: dict[str, float] = {}
        self._totals: dict[str, float] = {}
        self._alone: set[str] = set()

    def add(self, logs: Mapping[str, Any], rows: int) -> None:
        """Adds what the step returned for a batch of `rows` samples; call it before the next step."""
        self._last = dict(_numbers(logs))
        if has_own_test_step(self._model):
            self._alone |= of_one_batch(self._model, self._last)
        self._rows += rows
        for name, value in self._last.items():
            self._totals[name] = self._totals.get(name, 0.0) + value * rows

    def result(self) -> dict[str, float]:
        """Returns the metrics by name, the loss first."""
        means = {name: self._totals[name] / self._rows for name in self._last if name in self._alone}
        found = {**self._last, **means}
        return {name: found[name] for name in sorted(found, key=lambda name: name != "loss")}


def has_own_test_step(model: keras.Model) -> bool:
    """Whether the model's class overrides `test_step`."""
    return type(model).test_step is not keras.Model.test_step


def of_one_batch(model: keras.Model, logs: Mapping[str, float]) -> set[str]:
    """Returns the names of the logs of a step that no metric of the model accumulates."""
    kept: dict[str, Any] = {}
    for metric in model.metrics:
        if getattr(metric, "built", True):  # compiled metrics that the step skips have no result
            result = metric.result()
            kept.update(_numbers(result if isinstance(result, Mapping) else {metric.name: result}))
    return {name for name, value in logs.items() if name not in kept or not _same(value, kept[name])}


def _numbers(logs: Mapping[str, Any]) -> Iterator[tuple[str, float]]:
    """Yields logs as numbers; a metric with several values, such as one per class, gets one name for each."""
    for name, value in logs.items():
        values = np.asarray(keras.ops.convert_to_numpy(value)).reshape(-1)
        if len(values) == 1:
            yield name, float(values[0])
        else:
            yield from ((f"{name}/{number}", float(one)) for number, one in enumerate(values))


@contextlib.contextmanager
def _keeping_metrics(model: keras.Model) -> Iterator[None]:
    """Inside the block metrics accumulate over batches, which `test_on_batch` would reset."""
    model.reset_metrics = lambda: None
    try:
        yield
    finally:
        del model.reset_metrics  # the class has it


def _same(one: float, other: float) -> bool:
    return math.isclose(one, other, rel_tol=1e-5, abs_tol=1e-12) or (math.isnan(one) and math.isnan(other))


class MeanScore:
    """The `score` of an estimator, weighted by the number of samples; no metrics for one without `score`."""

    def __init__(self, estimator: Any) -> None:
        self._score = getattr(estimator, "score", None)
        self._r2 = R2() if _scores_r2(estimator) else None
        self._total, self._rows = 0.0, 0

    def add(self, x: Any, y: Any, weight: Any, y_pred: Any) -> None:
        """Adds a batch."""
        if self._r2 is not None:
            self._r2.add(np.asarray(y, np.float64), np.asarray(y_pred, np.float64))
        elif self._score is not None:
            self._total += float(self._score(x, y)) * len(y)
            self._rows += len(y)

    def result(self) -> dict[str, float]:
        """Returns R2 over all samples for a regressor, else the mean of the batches' scores."""
        if self._r2 is not None:
            return {"score": self._r2.result()}
        return {"score": self._total / self._rows} if self._rows else {}


class R2:
    """R2 over all samples in one pass; the mean of R2 over batches differs, and is undefined for a batch of one."""

    def __init__(self) -> None:
        self._rows, self._mean, self._spread, self._missed = 0, np.zeros(1), np.zeros(1), np.zeros(1)

    def add(self, y: np.ndarray, y_pred: np.ndarray) -> None:
        """Adds labels and predictions of a batch."""
        y, y_pred = y.reshape(len(y), -1), y_pred.reshape(len(y), -1)
        rows, mean = self._rows + len(y), y.mean(0)
        between = (mean - self._mean) ** 2 * self._rows * len(y) / rows
        self._spread = self._spread + ((y - mean) ** 2).sum(0) + between
        self._mean = self._mean + (mean - self._mean) * len(y) / rows
        self._missed, self._rows = self._missed + ((y - y_pred) ** 2).sum(0), rows

    def result(self) -> float:
        """Returns the mean over outputs, as scikit-learn does; a constant one counts 1 if predicted, else 0."""
        if self._rows < 2:
            return math.nan
        safe = np.where(self._spread > 0, self._spread, 1)
        flat = np.where(self._missed > 0, 0.0, 1.0)
        return float(np.where(self._spread > 0, 1 - self._missed / safe, flat).mean())


def _scores_r2(estimator: Any) -> bool:
    """Whether `score` is R2: scikit-learn's for regressors, also at the end of a pipeline or in a search."""
    base = sys.modules.get("sklearn.base")
    if base is None:
        return False
    if hasattr(estimator, "best_estimator_"):
        scoring = getattr(estimator, "scoring", None)
        return scoring == "r2" or (scoring is None and _scores_r2(estimator.best_estimator_))
    if hasattr(estimator, "named_steps"):
        return _scores_r2(estimator.steps[-1][1])
    return getattr(type(estimator), "score", None) is base.RegressorMixin.score
