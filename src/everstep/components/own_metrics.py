"""What `model.evaluate` would say, of predictions that somebody else has made."""

import contextlib
import math
import sys
from collections.abc import Iterator, Mapping
from typing import Any, Protocol

import keras
import numpy as np

from everstep.components.sample_weights import with_axes


class Overall(Protocol):
    """Takes batch after batch with the answers to it, and returns numbers for all of them."""

    def add(self, x: Any, y: Any, weight: Any, y_pred: Any) -> None:
        """Takes a batch."""

    def result(self) -> dict[str, float]:
        """Returns the numbers by name."""


class CompiledMetrics:
    """The loss and the metrics that a model was compiled with, as `model.evaluate` computes them.

    The model answers every batch itself: Keras's losses look at more than the values of an answer, such as the logits
    behind a softmax and the mask of a sequence, and what `add_loss` adds depends on the batch.

    Args:
      model: The model, with the weights that are evaluated.
    """

    def __init__(self, model: keras.Model) -> None:
        self._model, self._means = model, StepMeans(model)
        model.reset_metrics()

    def add(self, x: Any, y: Any, weight: Any, y_pred: Any) -> None:
        """Takes a batch; the exported model's predictions for it are not looked at."""
        rows = len(keras.tree.flatten(y)[0])
        x, y, weight = with_axes(self._model, (x, y, weight))
        with _metrics_going_on(self._model):
            logs = self._model.test_on_batch(x, y, sample_weight=weight, return_dict=True)
        self._means.add(logs, rows)

    def result(self) -> dict[str, float]:
        """Returns the mean loss, every sample counted once, and the metrics."""
        return self._means.result()


class StepMeans:
    """What `test_step` returns, over all batches.

    What one of the model's metrics has come to is taken as it is. Anything else that a `test_step` of the model's own
    returns is the batch's alone, and its mean is taken, every sample counted once.
    """

    def __init__(self, model: keras.Model) -> None:
        self._model, self._rows = model, 0
        self._last: dict[str, float] = {}
        self._totals: dict[str, float] = {}
        self._alone: set[str] = set()

    def add(self, logs: Mapping[str, Any], rows: int) -> None:
        """Takes what the step returned for a batch of so many samples; call it before another step."""
        self._last = dict(_numbers(logs))
        if has_own_test_step(self._model):
            self._alone |= of_one_batch(self._model, self._last)
        self._rows += rows
        for name, value in self._last.items():
            self._totals[name] = self._totals.get(name, 0.0) + value * rows

    def result(self) -> dict[str, float]:
        """Returns the numbers by name, the loss first."""
        means = {name: self._totals[name] / self._rows for name in self._last if name in self._alone}
        found = {**self._last, **means}
        return {name: found[name] for name in sorted(found, key=lambda name: name != "loss")}


def has_own_test_step(model: keras.Model) -> bool:
    """Tells whether the model's class writes `test_step` itself."""
    return type(model).test_step is not keras.Model.test_step


def of_one_batch(model: keras.Model, logs: Mapping[str, float]) -> set[str]:
    """Returns the names of what no metric of the model keeps: what the step that returned `logs` has just computed."""
    kept: dict[str, Any] = {}
    for metric in model.metrics:
        if getattr(metric, "built", True):  # compiled metrics that the step leaves out have no result
            result = metric.result()
            kept.update(_numbers(result if isinstance(result, Mapping) else {metric.name: result}))
    return {name for name, value in logs.items() if name not in kept or not _same(value, kept[name])}


def _numbers(logs: Mapping[str, Any]) -> Iterator[tuple[str, float]]:
    """Yields logs as numbers; those of a metric with several values, such as one for each class, are counted."""
    for name, value in logs.items():
        values = np.asarray(keras.ops.convert_to_numpy(value)).reshape(-1)
        if len(values) == 1:
            yield name, float(values[0])
        else:
            yield from ((f"{name}/{number}", float(one)) for number, one in enumerate(values))


@contextlib.contextmanager
def _metrics_going_on(model: keras.Model) -> Iterator[None]:
    """Inside the block, metrics go on from batch to batch: `test_on_batch` begins them anew."""
    model.reset_metrics = lambda: None
    try:
        yield
    finally:
        del model.reset_metrics  # the class has it


def _same(one: float, other: float) -> bool:
    return math.isclose(one, other, rel_tol=1e-5, abs_tol=1e-12) or (math.isnan(one) and math.isnan(other))


class MeanScore:
    """The `score` of an estimator, every sample counted once; nothing for one that has none."""

    def __init__(self, estimator: Any) -> None:
        self._score = getattr(estimator, "score", None)
        self._explained = Explained() if _scores_r2(estimator) else None
        self._total, self._rows = 0.0, 0

    def add(self, x: Any, y: Any, weight: Any, y_pred: Any) -> None:
        """Takes a batch."""
        if self._explained is not None:
            self._explained.add(np.asarray(y, np.float64), np.asarray(y_pred, np.float64))
        elif self._score is not None:
            self._total += float(self._score(x, y)) * len(y)
            self._rows += len(y)

    def result(self) -> dict[str, float]:
        """Returns R2 over all samples of a regressor; else the mean of the batches' scores."""
        if self._explained is not None:
            return {"score": self._explained.result()}
        return {"score": self._total / self._rows} if self._rows else {}


class Explained:
    """R2 over all samples, in one pass: the mean of R2 over batches is another number, and none for a batch of one."""

    def __init__(self) -> None:
        self._rows, self._mean, self._spread, self._missed = 0, np.zeros(1), np.zeros(1), np.zeros(1)

    def add(self, y: np.ndarray, y_pred: np.ndarray) -> None:
        """Takes labels and predictions of a batch."""
        y, y_pred = y.reshape(len(y), -1), y_pred.reshape(len(y), -1)
        rows, mean = self._rows + len(y), y.mean(0)
        between = (mean - self._mean) ** 2 * self._rows * len(y) / rows
        self._spread = self._spread + ((y - mean) ** 2).sum(0) + between
        self._mean = self._mean + (mean - self._mean) * len(y) / rows
        self._missed, self._rows = self._missed + ((y - y_pred) ** 2).sum(0), rows

    def result(self) -> float:
        """Returns the mean over outputs, as scikit-learn does; one that never varies counts 1 if met, else 0."""
        if self._rows < 2:
            return math.nan
        safe = np.where(self._spread > 0, self._spread, 1)
        flat = np.where(self._missed > 0, 0.0, 1.0)
        return float(np.where(self._spread > 0, 1 - self._missed / safe, flat).mean())


def _scores_r2(estimator: Any) -> bool:
    """Tells whether `score` is R2: scikit-learn's for regressors, also at the end of a pipeline or in a search."""
    base = sys.modules.get("sklearn.base")
    if base is None:
        return False
    if hasattr(estimator, "best_estimator_"):
        scoring = getattr(estimator, "scoring", None)
        return scoring == "r2" or (scoring is None and _scores_r2(estimator.best_estimator_))
    if hasattr(estimator, "named_steps"):
        return _scores_r2(estimator.steps[-1][1])
    return getattr(type(estimator), "score", None) is base.RegressorMixin.score
