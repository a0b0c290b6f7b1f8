"""How large gradients and weights are: sums that are kept inside the compiled step.

What a step hands to an optimizer's `apply` is measured there, so that steps of a task's own are measured, too. The
sums are variables: they may be added to in a branch of `cond`, and travel with the state.
"""

import logging
from collections.abc import Sequence
from typing import Any

import keras
import numpy as np
from keras import ops

from everstep.grad import ChainedScope
from everstep.optim.held import held_optimizers
from everstep.optim.loss_scale import find_scaling

logger = logging.getLogger(__name__)

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
        self._seen, self._told = False, False

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
        if not self._told:
            logger.warning("%s is not logged: the step hands its gradients to no optimizer's apply", GRADIENT)
        self._told = True
        return weights

    def reset(self) -> None:
        """Starts the next window."""
        for variable in self.owners.values():
            variable.assign(0.0)


def measure(task: Any, model: keras.Model, optimizer: Any, wanted: bool) -> Norms | None:
    """Measures the gradients that all optimizers of a run are given; None where nobody wants it.

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
