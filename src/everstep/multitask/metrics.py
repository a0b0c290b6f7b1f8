"""The metrics of several tasks as one, each under its task's name."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import keras
from keras import ops


class MultiTaskMetrics(keras.Metric):
    """Every task's metrics and mean loss, as `<task>/<name>`.

    A mean is over the samples of that task alone. Where no step was a task's, its values are NaN, which no comparison
    takes for a good one.

    Args:
      loss: What the mean of a task's loss is called: `training_loss`, `validation_loss`.
      own: The metrics of each task, made inside `keras.name_scope(<task>)`.
      weights: With it, the sum of the tasks' mean losses by these weights is reported too, without a task's name,
        unless no task has both a weight above 0 and a loss.
    """

    def __init__(
        self, loss: str, own: Mapping[str, Sequence[keras.Metric]], weights: Mapping[str, float] | None = None
    ) -> None:
        super().__init__(name="tasks")
        self.own = {name: list(metrics) for name, metrics in own.items()}
        self.means: dict[str, dict[str, keras.Metric]] = {name: {} for name in own}
        self.samples = {name: self._count(name) for name in own}
        self._loss, self._weights = loss, dict(weights or {})
        self._without_loss: set[str] = set()  # known once their steps have been traced
        for name in own:
            self._mean(name, loss)

    @property
    def metrics(self) -> list[keras.Metric]:
        """All metrics there are."""
        return [metric for name in self.own for metric in (*self.means[name].values(), *self.own[name])]

    def add(self, task: str, logs: Mapping[str, Any], loss: str, samples: int) -> None:
        """Takes in the scalars that a step of a task returned; runs inside the compiled step.

        Args:
          task: The task.
          logs: What its step returned.
          loss: The key of the loss in it.
          samples: How many samples it is of.
        """
        if loss not in logs:
            self._without_loss.add(task)
        for name, value in logs.items():
            if len(value.shape) == 0:
                mean = self._mean(task, self._loss if name == loss else name)
                mean.update_state(ops.cast(value, "float32"), sample_weight=float(samples))
        self.samples[task].assign(self.samples[task] + float(samples))

    def result(self) -> dict[str, Any]:
        """Returns all values by name, the weighted sum first."""
        values: dict[str, Any] = self._weighted_sum()
        for task in self.own:
            for name, metric in self._reported(task):
                found = metric.result()
                several = found if isinstance(found, Mapping) else {name: found}
                values |= {f"{task}/{key}": self._seen(task, value) for key, value in several.items()}
        return values

    def reset_state(self) -> None:
        """Starts anew."""
        for metric in self.metrics:
            metric.reset_state()
        for count in self.samples.values():
            count.assign(0.0)

    def _weighted_sum(self) -> dict[str, Any]:
        """Returns the sum of the losses by name; nothing where no task has both a weight and a loss."""
        counted = [task for task, weight in self._weights.items() if weight > 0 and task not in self._without_loss]
        losses = {task: self.means[task][self._loss].result() for task in counted}
        parts = [self._weights[task] * self._seen(task, loss) for task, loss in losses.items()]
        return {self._loss: sum(parts)} if parts else {}

    def _reported(self, task: str) -> list[tuple[str, keras.Metric]]:
        means = self.means[task].items()
        known = [(name, m) for name, m in means if name != self._loss or task not in self._without_loss]
        return [*known, *((metric.name, metric) for metric in self.own[task])]

    def _seen(self, task: str, value: Any) -> Any:
        """Returns a value if it is of any sample, else NaN."""
        value = ops.convert_to_tensor(value)
        value = value if keras.backend.is_float_dtype(value.dtype) else ops.cast(value, "float32")
        return ops.where(ops.convert_to_tensor(self.samples[task]) > 0, value, ops.cast(math.nan, value.dtype))

    def _count(self, task: str) -> keras.Variable:
        with keras.name_scope(task):
            return self.add_variable((), "zeros", dtype="float32", name="samples")

    def _mean(self, task: str, name: str) -> keras.Metric:
        """Returns the mean of a scalar, which is made when the scalar is first seen."""
        if name not in self.means[task]:
            with keras.name_scope(task):
                self.means[task][name] = keras.metrics.Mean(name=name, dtype="float32")
        return self.means[task][name]
