"""Adafactor, which keeps a row and a column of second moments instead of a whole matrix.

Keras has one that keeps the matrix as well, and that holds every learning rate, that of a schedule too, below one
over the square root of the step, whether or not `relative_step` says so.
"""

from collections.abc import Sequence
from typing import Any

import keras
from keras import ops

from everstep.optim.gradients import dense


@keras.saving.register_keras_serializable(package="everstep")
class Adafactor(keras.optimizers.Optimizer):
    """Steps relative to the weights, by second moments that are factored (Shazeer and Stern, 2018).

    Args:
      learning_rate: A float, or a schedule: the largest step, as a share of the variable's root mean square.
      beta_2_decay: The moments decay by `1 - step ** beta_2_decay`.
      epsilon_1: Added to squared gradients.
      epsilon_2: The smallest root mean square of a variable that its step is relative to.
      clip_threshold: The largest root mean square of an update.
      relative_step: Whether the learning rate is at most one over the square root of the step.
      **kwargs: Those of Keras's optimizers.
    """

    def __init__(
        self,
        learning_rate: Any = 0.001,
        beta_2_decay: float = -0.8,
        epsilon_1: float = 1e-30,
        epsilon_2: float = 1e-3,
        clip_threshold: float = 1.0,
        relative_step: bool = True,
        **kwargs: Any,
    ) -> None:
        super().__init__(learning_rate=learning_rate, **kwargs)
        self.beta_2_decay = beta_2_decay
        self.epsilon_1 = epsilon_1
        self.epsilon_2 = epsilon_2
        self.clip_threshold = clip_threshold
        self.relative_step = relative_step

    def build(self, variables: Sequence[keras.Variable]) -> None:
        """Creates a row and a column for what has two dimensions or more, and whole moments for the rest."""
        if self.built:
            return
        super().build(variables)
        self._moments = [self._slots(variable) for variable in variables]

    def _slots(self, variable: keras.Variable) -> list[keras.Variable]:
        shape = tuple(variable.shape)
        if len(shape) < 2:
            return [self.add_variable_from_reference(variable, name="velocity")]
        shapes = {"row": shape[:-1], "column": (*shape[:-2], shape[-1])}
        path = variable.path.replace("/", "_")
        return [self.add_variable(shapes[name], dtype=variable.dtype, name=f"{path}_{name}") for name in shapes]

    def update_step(self, gradient: Any, variable: Any, learning_rate: Any) -> None:
        """Updates one variable and its moments."""
        gradient = dense(gradient, variable)
        step = ops.cast(self.iterations + 1, variable.dtype)
        rate = ops.cast(learning_rate, variable.dtype)
        if self.relative_step:
            rate = ops.minimum(rate, 1.0 / ops.sqrt(step))
        decay = 1.0 - ops.power(step, self.beta_2_decay)
        slots = self._moments[self._get_variable_index(variable)]
        update = self._relative(gradient, slots, ops.square(gradient) + self.epsilon_1, decay)
        update = update / ops.maximum(_root_mean_square(update) / self.clip_threshold, 1.0)
        self.assign_sub(variable, rate * ops.maximum(_root_mean_square(variable), self.epsilon_2) * update)

    def _relative(self, gradient: Any, slots: Sequence[Any], square: Any, decay: Any) -> Any:
        """Divides a gradient by the root of its second moment.

        By that of the row, then by that of the column: where both are next to nothing, as those of a gradient that was
        never there are, their product is less than the smallest number.
        """
        if len(slots) == 1:
            return gradient / ops.sqrt(self._moved(slots[0], square, decay))
        row = self._moved(slots[0], ops.mean(square, axis=-1), decay)
        column = self._moved(slots[1], ops.mean(square, axis=-2), decay)
        whole = ops.sqrt(ops.mean(row, axis=-1, keepdims=True))
        by_row = gradient / ops.expand_dims(ops.sqrt(row), -1)
        return by_row * ops.expand_dims(whole / ops.sqrt(column), -2)

    def _moved(self, slot: Any, value: Any, decay: Any) -> Any:
        moved = decay * slot + (1.0 - decay) * value
        self.assign(slot, moved)
        return moved

    def get_config(self) -> dict[str, Any]:
        """Returns the arguments, for saving."""
        names = ("beta_2_decay", "epsilon_1", "epsilon_2", "clip_threshold", "relative_step")
        return {**super().get_config(), **{name: getattr(self, name) for name in names}}


def _root_mean_square(value: Any) -> Any:
    return ops.sqrt(ops.mean(ops.square(value)))
