"""LAMB and LARS: optimizers for large batches, whose step is as long as each variable's own norm allows.

Keras has a Lamb, but takes the weight decay off the variable before it measures the update; in the paper the decay is
a part of the update, whose norm the step is divided by. It has no LARS.
"""

from collections.abc import Sequence
from typing import Any

import keras
from keras import ops

from everstep.optim.gradients import dense
from everstep.optim.variable_names import ChoosesByName, matches


def trust_ratio(variable: Any, update: Any, share: float = 1.0) -> Any:
    """Returns `share` times the norm of a variable over that of its update; 1 where one of them is 0."""
    weight, change = ops.sqrt(ops.sum(ops.square(variable))), ops.sqrt(ops.sum(ops.square(update)))
    ones = ops.ones_like(change)
    ratio = share * weight / ops.where(change > 0, change, ones)
    return ops.where(ops.logical_and(weight > 0, change > 0), ratio, ones)


class _Layerwise(ChoosesByName):
    """Decay and adaptation that leave out variables by their names."""

    def __init__(
        self,
        *args: Any,
        weight_decay_rate: float = 0.0,
        exclude_from_decay: Sequence[str] = (),
        exclude_from_adaptation: Sequence[str] | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(*args, **kwargs)
        self.weight_decay_rate = weight_decay_rate
        self.exclude_from_decay = list(exclude_from_decay)
        unadapted = exclude_from_decay if exclude_from_adaptation is None else exclude_from_adaptation
        self.exclude_from_adaptation = list(unadapted)

    def _choose(self, variables: Sequence[keras.Variable]) -> None:
        names, rate = self._named(variables), self.weight_decay_rate
        self._decays = [0.0 if matches(self.exclude_from_decay, name) else rate for name in names]
        self._adapts = [not matches(self.exclude_from_adaptation, name) for name in names]

    def _decayed(self, update: Any, variable: Any) -> Any:
        """Returns an update with the variable's own decay."""
        rate = self._decays[self._get_variable_index(variable)]
        return update + rate * variable if rate else update

    def _scaled(self, learning_rate: Any, variable: Any, update: Any, share: float = 1.0) -> Any:
        """Returns the learning rate of a variable, adapted to its norm unless it is left out."""
        rate = ops.cast(learning_rate, variable.dtype)
        adapts = self._adapts[self._get_variable_index(variable)]
        return rate * trust_ratio(variable, update, share) if adapts else rate

    def get_config(self) -> dict[str, Any]:
        """Returns the arguments, for saving."""
        names = ("weight_decay_rate", "exclude_from_decay", "exclude_from_adaptation")
        return {**super().get_config(), **{name: getattr(self, name) for name in names}}


@keras.saving.register_keras_serializable(package="everstep")
class Lamb(_Layerwise, keras.optimizers.Lamb):
    """Adam's update plus decay, scaled to the norm of the variable (You et al., 2020)."""

    def update_step(self, gradient: Any, variable: Any, learning_rate: Any) -> None:
        """Updates one variable and its two moments."""
        gradient = dense(gradient, variable)
        index, step = self._get_variable_index(variable), ops.cast(self.iterations + 1, variable.dtype)
        mean = self._moved(self._momentums[index], gradient, self.beta_1)
        square = self._moved(self._velocities[index], ops.square(gradient), self.beta_2)
        mean = mean / (1.0 - ops.power(ops.cast(self.beta_1, variable.dtype), step))
        square = square / (1.0 - ops.power(ops.cast(self.beta_2, variable.dtype), step))
        update = self._decayed(mean / (ops.sqrt(square) + self.epsilon), variable)
        self.assign_sub(variable, self._scaled(learning_rate, variable, update) * update)

    def _moved(self, slot: Any, value: Any, decay: float) -> Any:
        moved = decay * slot + (1.0 - decay) * value
        self.assign(slot, moved)
        return moved


@keras.saving.register_keras_serializable(package="everstep")
class Lars(_Layerwise):
    """Gradient descent with momentum, `eeta` times the norm of the variable a step (You et al., 2017).

    Args:
      learning_rate: A float, or a schedule.
      momentum: Share of the last update that is kept.
      eeta: The length of a step as a share of the variable's norm.
      nesterov: Looks ahead along the momentum.
      classic_momentum: Whether the momentum is of steps, each with its learning rate and norm. Otherwise it is of
        gradients, and their sum is scaled.
      **kwargs: `weight_decay_rate`, `exclude_from_decay`, `exclude_from_adaptation`, and those of Keras's optimizers.
    """

    def __init__(
        self,
        learning_rate: Any = 0.01,
        momentum: float = 0.9,
        eeta: float = 0.001,
        nesterov: bool = False,
        classic_momentum: bool = True,
        **kwargs: Any,
    ) -> None:
        super().__init__(learning_rate=learning_rate, **kwargs)
        self.momentum = momentum
        self.eeta = eeta
        self.nesterov = nesterov
        self.classic_momentum = classic_momentum

    def build(self, variables: Sequence[keras.Variable]) -> None:
        """Creates the momentum of each variable."""
        if self.built:
            return
        super().build(variables)
        self.momentums = self.add_optimizer_variables(variables, "momentum")

    def update_step(self, gradient: Any, variable: Any, learning_rate: Any) -> None:
        """Updates one variable and its momentum."""
        gradient = dense(gradient, variable)
        change = self._decayed(gradient, variable)
        if self.classic_momentum:
            length = self._scaled(learning_rate, variable, change, self.eeta)
            self.assign_sub(variable, self._with_momentum(length * change, variable))
        else:
            update = self._with_momentum(change, variable)
            self.assign_sub(variable, self._scaled(learning_rate, variable, update, self.eeta) * update)

    def _with_momentum(self, change: Any, variable: Any) -> Any:
        slot = self.momentums[self._get_variable_index(variable)]
        total = self.momentum * slot + change
        self.assign(slot, total)
        return self.momentum * total + change if self.nesterov else total

    def get_config(self) -> dict[str, Any]:
        """Returns the arguments, for saving."""
        names = ("momentum", "eeta", "nesterov", "classic_momentum")
        return {**super().get_config(), **{name: getattr(self, name) for name in names}}
