"""What `model.evaluate` would say, of predictions that somebody else has made."""

import contextlib
import math
import sys
from collections.abc import Iterator, Mapping
from typing import Any, Protocol

import keras
import numpy as np

from everstep.components.sample_weights import with_axes
from everstep.task import compiled_step


class Overall(Protocol):
    """Takes batch after batch with the answers to it, and returns numbers for all of them."""

    def add(self, x: Any, y: Any, weight: Any, y_pred: Any) -> None:
        """Takes a batch."""

    def result(self) -> dict[str, float]:
        """Returns the numbers by name."""


class CompiledMetrics:
    """The loss and the metrics that a model was compiled with.

    Args:
      model: The model; it has the weights that made the predictions, on which its own losses depend.
    """

    def __init__(self, model: keras.Model) -> None:
        self._model, self._total, self._rows = model, 0.0, 0
        self._means = StepMeans(model) if has_own_test_step(model) else None
        model.reset_metrics()

    def add(self, x: Any, y: Any, weight: Any, y_pred: Any) -> None:
        """Takes a batch; a model with a `test_step` of its own is asked itself."""
        rows = len(keras.tree.flatten(y)[0])
        x, y, weight = with_axes(self._model, (x, y, weight))
        if self._means is not None:
            with _metrics_going_on(self._model):
                logs = self._model.test_on_batch(x, y, sample_weight=weight, return_dict=True)
            self._means.add(logs, rows)
            return
        y, y_pred, weight = (_tensors(part) for part in (y, y_pred, weight))
        loss = compiled_step.compiled_loss((x, y, weight), y_pred, self._model, training=False)
        self._total += float(keras.ops.convert_to_numpy(loss)) * rows
        self._rows += rows
        self._model.compute_metrics(x, y, y_pred, sample_weight=weight)

    def result(self) -> dict[str, float]:
        """Returns the mean loss, every sample counted once, and the metrics."""
        if self._means is not None:
            return self._means.result()
        others = {name: value for name, value in self._model.get_metrics_result().items() if name != "loss"}
        return {"loss": self._total / max(self._rows, 1), **{name: float(value) for name, value in others.items()}}


class StepMeans:
    """What a `test_step` of a model's own returns, over all batches.

    What one of the model's metrics has come to is taken as it is. Anything else is the batch's alone, and its mean is
    taken, every sample counted once.
    """

    def __init__(self, model: keras.Model) -> None:
        self._model, self._rows = model, 0
        self._last: dict[str, float] = {}
        self._totals: dict[str, float] = {}
        self._alone: set[str] = set()

    def add(self, logs: Mapping[str, Any], rows: int) -> None:
        """Takes what the step returned for a batch of so many samples; call it before another step."""
        self._last = {name: float(value) for name, value in logs.items()}
        self._alone |= of_one_batch(self._model, self._last)
        self._rows += rows
        for name, value in self._last.items():
            self._totals[name] = self._totals.get(name, 0.0) + value * rows

    def result(self) -> dict[str, float]:
        """Returns the numbers by name."""
        means = {name: self._totals[name] / self._rows for name in self._last if name in self._alone}
        return {**self._last, **means}


def has_own_test_step(model: keras.Model) -> bool:
    """Tells whether the model's class writes `test_step` itself."""
    return type(model).test_step is not keras.Model.test_step


def of_one_batch(model: keras.Model, logs: Mapping[str, float]) -> set[str]:
    """Returns the names of what no metric of the model keeps: what the step that returned `logs` has just computed."""
    kept: dict[str, Any] = {}
    for metric in model.metrics:
        if getattr(metric, "built", True):  # compiled metrics that the step leaves out have no result
            result = metric.result()
            kept.update(result if isinstance(result, Mapping) else {metric.name: result})
    return {name for name, value in logs.items() if name not in kept or not _same(value, float(kept[name]))}


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


def _tensors(part: Any) -> Any:
    return None if part is None else keras.tree.map_structure(keras.ops.convert_to_tensor, part)
