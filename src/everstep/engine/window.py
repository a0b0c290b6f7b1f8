"""What a stretch of steps adds up to: the means of the scalars its steps returned, and the metrics.

The sums are Keras variables like any other, so that they live on the device, travel with the state and continue
exactly after a resume in the middle of a window.
"""

import logging
from collections.abc import Mapping, Sequence
from typing import Any

import keras
import numpy as np
from keras import ops

from everstep.data import nest
from everstep.task.grad import ChainedScope, current_share
from everstep.task.optim.loss_scale import find_scaling
from everstep.task.optim.optimizers import held_optimizers
from everstep.types import Batch

logger = logging.getLogger(__name__)

FINITE_STEPS = "finite_steps"
"""The key, among those of a window, of what is no part of the state."""


class Window:
    """Sums over samples of what steps return, and metrics, read and reset together.

    Args:
      logged: What a step returns, by name and shape; numbers, unless the reduction is `last`. A name that a metric has
        as well is that metric's result so far, which steps may return as Keras's do: the metric has it at the end.
      metrics: What the step updates.
      reduction: `mean`, or `last` for steps that return results of the metrics so far.
      norms: What else is kept of each step.
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
        self.finite_steps: FiniteSteps | None = None

    def watch(self, name: str) -> None:
        """Finds out from now on in which step a scalar is not finite for the first time."""
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

    def add(self, logs: Mapping[str, Any], size: int) -> None:
        """Adds what one step returned, computed over `size` samples; runs inside the compiled step."""
        last = self.reduction == "last"
        weight = 1.0 if last and current_share() is None else float(size)  # one device's results stay as they are
        for name, total in self.totals.items():
            value = ops.cast(logs[name], "float32") * weight
            total.assign(value if last else total + value)
        self.samples.assign(ops.full((), weight) if last else self.samples + weight)
        if self.norms is not None:
            self.norms.add(weight)
        if self.finite_steps is not None:
            self.finite_steps.add(logs)

    def read(self) -> dict[str, Any]:
        """Returns the means and the metrics' results; may run compiled."""
        logs = {name: total / ops.maximum(self.samples, 1.0) for name, total in self.totals.items()}
        for metric in self.metrics if self.reduction == "mean" else ():
            result = metric.result()
            logs.update(result if isinstance(result, Mapping) else {metric.name: result})
        return logs if self.norms is None else {**logs, **self.norms.read()}

    def reset(self) -> None:
        """Starts the next stretch."""
        for variable in (*self.totals.values(), self.samples):
            variable.assign(ops.zeros(variable.shape))
        for metric in self.metrics:
            metric.reset_state()
        if self.norms is not None:
            self.norms.reset()
        if self.finite_steps is not None:
            self.finite_steps.count.assign(0.0)


class FiniteSteps:
    """Counts steps until a scalar is not finite; the count then stays as it is, with a minus.

    It is no part of the state: a state with a loss that is not finite is never saved, so that a resumed run starts
    to count from zero.

    Args:
      name: Of the scalar.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self.count = keras.Variable(0.0, dtype="float32", trainable=False, name="finite_steps")

    def add(self, logs: Mapping[str, Any]) -> None:
        """Looks at one step's scalars; runs inside the compiled step."""
        count, loss = ops.convert_to_tensor(self.count), ops.cast(logs[self._name], "float32")
        self.count.assign(ops.where(count < 0.0, count, ops.where(ops.isfinite(loss), count + 1.0, -(count + 1.0))))


def size_of(batch: Batch) -> int:
    """Returns how many samples a batch has."""
    return int(nest.flatten(batch)[0].shape[0])


GRADIENT, WEIGHTS = "norm/gradient", "norm/weights"
"""What the norms are called in the logs."""


class Norms:
    """The norm of all gradients of a step, as a mean over a window, and that of the weights at its end.

    Gradients are measured before they are clipped. A step that an optimizer leaves out, because its scaled gradients
    are not finite, does not count.

    Args:
      model: Whose weights are measured.
    """

    def __init__(self, model: keras.Model) -> None:
        self._model = model
        self._squares, self._total, self._samples = zero("squares"), zero("total"), zero("samples")
        self._inside = False  # an optimizer around another one: only the outer one's gradients count
        self._seen, self._warned = False, False

    @property
    def owners(self) -> dict[str, keras.Variable]:
        """The variables, for the state."""
        return {"squares": self._squares, "total": self._total, "samples": self._samples}

    def watch(self, optimizer: Any) -> None:
        """Measures what is handed to an optimizer from now on."""
        apply = optimizer.apply

        def measured(grads: Sequence[Any], *args: Any, **kwargs: Any) -> Any:
            outer, self._inside = self._inside, True
            try:
                if not outer and _is_kept():
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
            # Less than nothing marks a step that is left out.
            squares = ops.where(ops.isfinite(squares), squares, ops.full((), -1.0))
        self._squares.assign(self._squares + squares)

    def add(self, weight: float) -> None:
        """Adds one step's norm, over so many samples; runs inside the compiled step."""
        counts = ops.cast(self._squares >= 0.0, "float32") * weight
        self._total.assign(self._total + ops.sqrt(ops.maximum(self._squares, 0.0)) * counts)
        self._samples.assign(self._samples + counts)
        self._squares.assign(0.0)

    def read(self) -> dict[str, Any]:
        """Returns the norms; that of the gradients where any were seen."""
        weights = {WEIGHTS: ops.sqrt(_sum_of_squares(self._model.trainable_variables))}
        if self._seen:
            return {GRADIENT: self._total / ops.maximum(self._samples, 1.0), **weights}
        if not self._warned:
            logger.warning("%s is not logged: the step hands its gradients to no optimizer's apply", GRADIENT)
        self._warned = True
        return weights

    def reset(self) -> None:
        """Starts the next window."""
        for variable in self.owners.values():
            variable.assign(0.0)


def measure(task: Any, model: keras.Model, optimizer: Any, wanted: bool) -> Norms | None:
    """Measures the gradients that all optimizers of a run are given; None where it is not wanted.

    What an engine did that had the same optimizers before is undone.
    """
    held = held_optimizers(optimizer, task, model)
    for one in held:
        if (apply := getattr(one.apply, "unmeasured", None)) is not None:
            object.__setattr__(one, "apply", apply)
    if not wanted or optimizer is None:
        return None
    norms = Norms(model)
    for one in held:
        norms.watch(one)
    return norms


def zero(name: str, shape: tuple = ()) -> keras.Variable:
    """Returns a sum that is 0 so far; each replica adds to its own, and the sum is read."""
    sums = {"aggregation": "sum", "synchronization": "on_read"}
    return keras.Variable(np.zeros(shape, "float32"), dtype="float32", trainable=False, name=name, **sums)


def _sum_of_squares(arrays: Sequence[Any]) -> Any:
    squares = [ops.sum(ops.square(ops.cast(array, "float32"))) for array in arrays]
    return sum(squares, ops.zeros((), "float32"))


def _is_kept() -> bool:
    """Whether what is assigned now lasts: not so in a stateless call of a model's own step."""
    scope = keras.src.backend.common.global_state.get_global_attribute("stateless_scope")
    return scope is None or isinstance(scope, ChainedScope)
