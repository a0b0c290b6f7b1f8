"""What a stretch of steps adds up to: the means of the scalars its steps returned, and the metrics.

The sums are Keras variables like any other, so that they live on the device, travel with the state and continue
exactly after a resume in the middle of a window.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import keras
from keras import ops

from everstep.data import nest
from everstep.engine.norms import Norms, zero
from everstep.errors import UsageError
from everstep.types import Batch

FINITE_STEPS = "finite_steps"
"""The key, among those of a window, of what is no part of the state."""


class Window:
    """Sums over samples of named scalars, and metrics, read and reset together.

    Args:
      scalars: Names of what a step returns. One that a metric has as well is that metric's result so far, which steps
        may return as Keras's do: the metric itself has the right value at the end.
      metrics: What the step updates.
      reduction: `mean`, or `last` for steps whose scalars are themselves results of the metrics so far.
      norms: What else is kept of each step.
    """

    def __init__(
        self,
        scalars: Sequence[str],
        metrics: Sequence[keras.Metric],
        reduction: str = "mean",
        norms: Norms | None = None,
    ) -> None:
        self.metrics = list(metrics)
        self.norms = norms
        self.reduction = reduction
        named = [metric.name for metric in metrics] if reduction == "mean" else []
        self.totals = {name: zero("total") for name in scalars if name not in named}
        self.samples = zero("samples")
        self.finite_steps: FiniteSteps | None = None
        _refuse_duplicates(named)

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
        """Adds one step's scalars, computed over `size` samples; runs inside the compiled step."""
        weight = float(size)
        for name, total in self.totals.items():
            value = ops.cast(logs[name], "float32") * weight
            total.assign(value if self.reduction == "last" else total + value)
        self.samples.assign(ops.full((), weight) if self.reduction == "last" else self.samples + weight)
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
            variable.assign(0.0)
        for metric in self.metrics:
            metric.reset_state()
        if self.norms is not None:
            self.norms.reset()
        if self.finite_steps is not None:
            self.finite_steps.count.assign(0.0)


class FiniteSteps:
    """Counts steps until a scalar is not finite; the count then stays as it is, with a minus.

    It is no part of the state: a state with a loss that is not finite is never saved, so that whoever resumes begins
    to count anew.

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


def _refuse_duplicates(names: Sequence[str]) -> None:
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise UsageError(f"two metrics are named {', '.join(map(repr, twice))}: give them other names")
