"""`WindowSums`: the means of the scalars that a range of steps returned, and the results of the metrics.

The sums are Keras variables: they live on the device, are saved with the state, and continue exactly after a resume in
the middle of a window.
"""

import logging
from collections.abc import Mapping, Sequence
from typing import Any

import keras
import numpy as np
from keras import ops

from everstep.data import nest
from everstep.keras_internals import global_state
from everstep.task import ChainedScope, current_share
from everstep.task.optim import find_scaling, held_optimizers
from everstep.types import Batch

logger = logging.getLogger(__name__)

FINITE_STEPS = "finite_steps"
"""The key of the one variable of a window that is not part of the saved state."""


class WindowSums:
    """Sums of the scalars that steps return, weighted by samples, or tokens, and metrics; read and reset together.

    Args:
      logged: The shapes of the logs of a step, by name; scalars, unless the reduction is `last`. A log with the name of
        a metric is the result of that metric so far, as Keras's own steps return it, and is read from the metric.
      metrics: The metrics that the step updates.
      reduction: `mean`, or `last` for steps that return results of their metrics so far.
      norms: The norms to measure in each step; None for none.
    """

    def __init__(
        self,
        logged: Mapping[str, tuple],
        metrics: Sequence[keras.Metric],
        reduction: str = "mean",
        norms: "Norms | None" = None,
    ) -> None:
        self.metrics = list(metrics)
        self.norms = norms
        self.reduction = reduction
        named = [metric.name for metric in metrics] if reduction == "mean" else []
        self.totals = {name: zero("total", shape) for name, shape in logged.items() if name not in named}
        self.samples = zero("samples")
        self.results: dict[str, tuple[keras.Metric, str | None]] = {}
        """Logs that are results of a metric, or of a part of one, and are read from it; set for several processes."""
        self.finite_steps: FiniteSteps | None = None

    def watch(self, name: str) -> None:
        """Starts to watch in which step a scalar is not finite for the first time."""
        self.finite_steps = FiniteSteps(name)

    @property
    def owners(self) -> dict[str, Any]:
        """The variables of the sums, for the state."""
        norms = {} if self.norms is None else {"norms": self.norms.owners}
        watched = {} if self.finite_steps is None else {FINITE_STEPS: self.finite_steps.count}
        return {"totals": self.totals, "samples": self.samples, **norms, **watched}

    @property
    def variables(self) -> list[keras.Variable]:
        """All variables that `reset` may change."""
        norms = [] if self.norms is None else self.norms.owners.values()
        watched = [] if self.finite_steps is None else [self.finite_steps.count]
        return [*self.totals.values(), self.samples, *norms, *watched, *(v for m in self.metrics for v in m.variables)]

    def add(self, logs: Mapping[str, Any], size: Any) -> None:
        """Adds the logs of one step over `size` samples, or what the task counts; runs inside the compiled step."""
        last = self.reduction == "last"
        weight = float(size) if isinstance(size, int) else size
        if last and current_share() is None:
            weight = 1.0  # results on one device are not averaged
        for name, total in self.totals.items():
            value = ops.cast(logs[name], "float32") * weight
            total.assign(value if last else total + value)
        self.samples.assign(ops.zeros(()) + weight if last else self.samples + weight)
        if self.norms is not None:
            self.norms.add(weight)
        if self.finite_steps is not None:
            self.finite_steps.add(logs)

    def read(self) -> dict[str, Any]:
        """Returns the means and the results of the metrics; may run compiled."""
        count = _at_least_something(self.samples)
        logs = {name: total / count for name, total in self.totals.items()}
        for metric in self.metrics if self.reduction == "mean" else ():
            result = metric.result()
            logs.update(result if isinstance(result, Mapping) else {metric.name: result})
        for name, (metric, part) in self.results.items():
            logs[name] = metric.result() if part is None else metric.result()[part]
        return logs if self.norms is None else {**logs, **self.norms.read()}

    def reset(self) -> None:
        """Starts the next window: all sums and metrics are zero."""
        self.reset_sums()
        for metric in self.metrics:
            metric.reset_state()

    def reset_sums(self) -> None:
        """Resets what is not part of a metric."""
        for variable in (*self.totals.values(), self.samples):
            variable.assign(ops.zeros(variable.shape))
        if self.norms is not None:
            self.norms.reset()
        if self.finite_steps is not None:
            self.finite_steps.count.assign(0.0)


class FiniteSteps:
    """Counts steps until a scalar is not finite; from then on the count is constant and negative.

    The count is not part of the saved state: a state with a non-finite loss is never saved, so a resumed run starts at
    zero.

    Args:
      name: The name of the scalar in the logs.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.count = keras.Variable(0.0, dtype="float32", trainable=False, name="finite_steps")

    def add(self, logs: Mapping[str, Any]) -> None:
        """Checks the scalar of one step; runs inside the compiled step."""
        count, loss = ops.convert_to_tensor(self.count), ops.cast(logs[self.name], "float32")
        self.count.assign(ops.where(count < 0.0, count, ops.where(ops.isfinite(loss), count + 1.0, -(count + 1.0))))


def size_of(batch: Batch) -> int:
    """Returns the number of samples in a batch."""
    return int(nest.flatten(batch)[0].shape[0])


GRADIENT, WEIGHTS = "norm/gradient", "norm/weights"
"""The names of the norms in the logs."""


class Norms:
    """The norm of all gradients of a step, averaged over a window, and the norm of the weights at its end.

    Gradients are measured before they are clipped. A step that an optimizer skips, because its scaled gradients are not
    finite, does not count.

    Args:
      model: The model whose weights are measured.
    """

    def __init__(self, model: keras.Model) -> None:
        self._model = model
        self._squares, self._total, self._samples = zero("squares"), zero("total"), zero("samples")
        self._inside = False  # a wrapped optimizer: only the gradients of the outer one count
        self._seen, self._warned = False, False

    @property
    def owners(self) -> dict[str, keras.Variable]:
        """The variables, for the state."""
        return {"squares": self._squares, "total": self._total, "samples": self._samples}

    def watch(self, optimizer: Any) -> None:
        """Measures the gradients that an optimizer applies from now on."""
        apply = optimizer.apply

        def measured(grads: Sequence[Any], *args: Any, **kwargs: Any) -> Any:
            outer, self._inside = self._inside, True
            try:
                if not outer and _assignments_are_kept():
                    self._measure([grad for grad in grads if grad is not None], find_scaling(optimizer))
                return apply(grads, *args, **kwargs)
            finally:
                self._inside = outer

        measured.unmeasured = apply  # type: ignore[attr-defined]
        object.__setattr__(optimizer, "apply", measured)

    def _measure(self, grads: Sequence[Any], scaling: Any) -> None:
        self._seen = True
        squares = _sum_of_squares(grads)
        if scaling is not None:
            squares = squares / ops.square(ops.cast(scaling.dynamic_scale, "float32"))
            # A negative value marks a step that is skipped.
            squares = ops.where(ops.isfinite(squares), squares, ops.full((), -1.0))
        self._squares.assign(self._squares + squares)

    def add(self, weight: float) -> None:
        """Adds the norm of one step, weighted by its samples; runs inside the compiled step."""
        counts = ops.cast(self._squares >= 0.0, "float32") * weight
        self._total.assign(self._total + ops.sqrt(ops.maximum(self._squares, 0.0)) * counts)
        self._samples.assign(self._samples + counts)
        self._squares.assign(0.0)

    def read(self) -> dict[str, Any]:
        """Returns the norms; that of the gradients only if an optimizer has applied some."""
        weights = {WEIGHTS: ops.sqrt(_sum_of_squares(self._model.trainable_variables))}
        if self._seen:
            return {GRADIENT: self._total / _at_least_something(self._samples), **weights}
        if not self._warned:
            logger.warning("%s is not logged: the step passes its gradients to no optimizer's apply", GRADIENT)
        self._warned = True
        return weights

    def reset(self) -> None:
        """Starts the next window."""
        for variable in self.owners.values():
            variable.assign(0.0)


def measure(task: Any, model: keras.Model, optimizer: Any, wanted: bool) -> Norms | None:
    """Measures the gradients that all optimizers of a run apply; returns None if that is not wanted.

    Measuring that an earlier engine has set up on the same optimizers is removed.
    """
    optimizers = held_optimizers(optimizer, task, model)
    for measured in optimizers:
        if (apply := getattr(measured.apply, "unmeasured", None)) is not None:
            object.__setattr__(measured, "apply", apply)
    if not wanted or optimizer is None:
        return None
    norms = Norms(model)
    for measured in optimizers:
        norms.watch(measured)
    return norms


def _at_least_something(count: keras.Variable) -> Any:
    """Returns a sum of weights to divide by: 1 if nothing has been added."""
    return ops.where(count > 0.0, ops.convert_to_tensor(count), ops.ones(()))


def zero(name: str, shape: tuple = ()) -> keras.Variable:
    """Returns a new sum of 0; each replica adds to its own copy, and a read returns their sum."""
    sums = {"aggregation": "sum", "synchronization": "on_read"}
    return keras.Variable(np.zeros(shape, "float32"), dtype="float32", trainable=False, name=name, **sums)


def _sum_of_squares(arrays: Sequence[Any]) -> Any:
    squares = [ops.sum(ops.square(ops.cast(array, "float32"))) for array in arrays]
    return sum(squares, ops.zeros((), "float32"))


def _assignments_are_kept() -> bool:
    """Whether assignments are kept: not in a stateless call of a model's own step."""
    scope = global_state.get_global_attribute("stateless_scope")
    return scope is None or isinstance(scope, ChainedScope)
