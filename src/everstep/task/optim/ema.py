"""A moving average of the weights, kept by an optimizer that wraps another one.

    optimizer = ExponentialMovingAverage(keras.optimizers.Adam(1e-3), average_decay=0.999)

The averages are variables of the optimizer: what saves the optimizer saves them. They start as the weights. Nothing
here puts them into the model; an evaluation exchanges the values of `pairs()`, and exchanges them back.
"""

import functools
import re
from collections.abc import Iterable, Sequence
from typing import Any

import keras
from keras import ops

from everstep.errors import UsageError
from everstep.types import State

SLOT = "moving_average"
"""What the state calls an average: `optimizer/<the variable's key>/moving_average`."""

_AVERAGE = re.compile(rf"optimizer/(?:inner/)*(model/.+)/{SLOT}")


@keras.saving.register_keras_serializable(package="everstep")
class ExponentialMovingAverage(keras.optimizers.Optimizer):
    """Applies gradients by another optimizer, then moves an average of every weight.

    After each update of the weights `average = decay * average + (1 - decay) * weight`, where the decay is that of
    `decay`. A step that updates no weights (gradients that are accumulated, or not finite under loss scaling) moves
    no average.

    Args:
      inner_optimizer: The optimizer that updates the weights.
      trainable_weights_only: False also averages the other numbers that the model keeps, such as the statistics of
        batch normalization; `track` has to say which model. Seeds and integers are never averaged.
      average_decay: The share of the former average that an update keeps.
      start_step: Before this step the averages are copies of the weights.
      dynamic_decay: Whether to keep less at first.
      name: The optimizer's name.
    """

    def __init__(
        self,
        inner_optimizer: keras.optimizers.Optimizer,
        trainable_weights_only: bool = True,
        average_decay: float = 0.99,
        start_step: int = 0,
        dynamic_decay: bool = True,
        name: str | None = None,
    ) -> None:
        super().__init__(learning_rate=0.0, name=name)
        self.inner_optimizer = inner_optimizer
        self.trainable_weights_only = trainable_weights_only
        self.average_decay = average_decay
        self.start_step = start_step
        self.dynamic_decay = dynamic_decay
        self._averages: list[keras.Variable] = []
        self._trained = 0  # so many of the averaged variables are trained

    def track(self, model: keras.Model) -> None:
        """Says whose other numbers are averaged where `trainable_weights_only` is False; called once, before training.

        The model need not be built yet, but the optimizer must not be.

        Raises:
          UsageError: The optimizer was built before.
        """
        if self.trainable_weights_only:
            return
        if self.built:
            raise UsageError(
                "track(model) is called too late",
                remedy="call it before the optimizer is built, or has applied",
            )
        object.__setattr__(self, "_model", model)  # Keras would take the model for a part of the optimizer

    def start(self) -> None:
        """Makes the averages copies of the weights: for weights that were loaded after the optimizer was built."""
        for variable, average in self.pairs():
            average.assign(variable)

    def pairs(self) -> list[tuple[keras.Variable, keras.Variable]]:
        """Returns every averaged variable of the model with the variable that holds its average."""
        return list(zip(self._trainable_variables, self._averages, strict=True))

    def decay(self, step: Any) -> Any:
        """Returns the share of the former average that the update which ends at `step` keeps.

        It is 0 before `start_step`. From there on it is `average_decay`, and with `dynamic_decay` at most
        `(1 + n) / (10 + n)`, where n is `step - start_step`.
        """
        since = ops.cast(step, "float32") - float(self.start_step)
        decay: Any = self.average_decay
        if self.dynamic_decay:
            n = ops.maximum(since, 0.0)
            decay = ops.minimum((1.0 + n) / (10.0 + n), decay)
        return ops.where(since < 0, 0.0, decay)

    # -- what Keras asks of an optimizer -----------------------------------------------------------------------------

    def build(self, variables: Sequence[keras.Variable]) -> None:
        """Builds the inner optimizer, and creates the averages."""
        if self.built:
            return
        trained = list(variables)
        if not self.inner_optimizer.built:
            self.inner_optimizer.build(trained)
        followed = [*trained, *self._others()]
        super().build(followed)
        self._trained = len(trained)
        self._averages = [self._average_of(variable) for variable in followed]

    def _others(self) -> list[keras.Variable]:
        if self.trainable_weights_only:
            return []
        model = getattr(self, "_model", None)
        if model is None:
            raise UsageError(
                "averages what the model keeps, which is unknown",
                key="trainable_weights_only",
                received=False,
                remedy="call track(model) first",
            )
        return [v for v in model.non_trainable_weights if keras.backend.is_float_dtype(v.dtype)]

    def _average_of(self, variable: keras.Variable) -> keras.Variable:
        return self.add_variable(
            shape=variable.shape,
            initializer=lambda shape, dtype=None: ops.cast(ops.copy(variable), dtype or variable.dtype),
            dtype=variable.dtype,
            aggregation="only_first_replica",  # the weights are the same on all
            # Keras's own `use_ema` calls its averages `average`: those are not what is evaluated.
            name=f"{variable.path.replace('/', '_')}_{SLOT}",
        )

    def apply(self, grads: Sequence[Any], trainable_variables: Sequence[keras.Variable] | None = None) -> None:
        """Updates the weights, then the averages."""
        if not self.built and trainable_variables is not None:
            self.build(trainable_variables)
        before = ops.copy(self.iterations)
        self.inner_optimizer.apply(grads, trainable_variables)
        after = ops.copy(self.iterations)
        decay = ops.where(after > before, self.decay(after), 1.0)
        for variable, average in self.pairs():
            kept = ops.cast(decay, variable.dtype)
            self.assign(average, kept * average + (1.0 - kept) * variable)

    def stateless_apply(
        self, optimizer_variables: Sequence[Any], grads: Sequence[Any], trainable_variables: Sequence[Any]
    ) -> tuple[list[Any], list[Any]]:
        """Returns the trained variables and the optimizer's as `apply` would leave them."""
        trained, others = self._trainable_variables[: self._trained], self._trainable_variables[self._trained :]
        values = [*trainable_variables, *map(_current, others), *optimizer_variables]
        mapping = list(zip([*trained, *others, *self.variables], values, strict=True))
        with keras.StatelessScope(state_mapping=mapping) as scope:
            self.apply(grads, trained)
        now = scope.get_current_value
        return [now(variable) for variable in trained], [now(variable) for variable in self.variables]

    @property
    def variables(self) -> list[keras.Variable]:
        """The averages and what the inner optimizer has; steps and learning rate are counted there."""
        return [*self._averages, *self.inner_optimizer.variables]

    @property
    def iterations(self) -> Any:
        """The updates of the weights so far."""
        return self.inner_optimizer.iterations

    @property
    def learning_rate(self) -> Any:
        """The inner optimizer's learning rate."""
        return self.inner_optimizer.learning_rate

    @learning_rate.setter
    def learning_rate(self, learning_rate: Any) -> None:
        self.inner_optimizer.learning_rate = learning_rate

    def scale_loss(self, loss: Any) -> Any:
        """Scales a loss as the inner optimizer does."""
        return self.inner_optimizer.scale_loss(loss)

    def finalize_variable_values(self, var_list: Sequence[keras.Variable]) -> None:
        """Leaves the weights as they are, unless the inner optimizer has plans with them."""
        self.inner_optimizer.finalize_variable_values(var_list)

    def get_config(self) -> dict[str, Any]:
        """Returns the arguments, for saving."""
        names = ("name", "trainable_weights_only", "average_decay", "start_step", "dynamic_decay")
        inner = keras.saving.serialize_keras_object(self.inner_optimizer)
        return {"inner_optimizer": inner, **{name: getattr(self, name) for name in names}}

    @classmethod
    def from_config(cls, config: dict[str, Any], custom_objects: Any = None) -> "ExponentialMovingAverage":
        """Makes one from what `get_config` returned."""
        deserialize = functools.partial(keras.saving.deserialize_keras_object, custom_objects=custom_objects)
        return cls(**{**config, "inner_optimizer": deserialize(config["inner_optimizer"])})


def find_average(optimizer: Any) -> ExponentialMovingAverage | None:
    """Returns the moving average among an optimizer and those it wraps, such as one that scales the loss."""
    while optimizer is not None and not isinstance(optimizer, ExponentialMovingAverage):
        optimizer = getattr(optimizer, "inner_optimizer", None)
    return optimizer


def _current(variable: keras.Variable) -> Any:
    """Returns a variable's value as the scopes around know it: Keras's nested scopes hide the outer ones."""
    with keras.StatelessScope() as here:
        scope = here.original_scope
    while scope is not None:
        value = scope.get_current_value(variable)
        if value is not None:
            return value
        scope = scope.original_scope
    return variable.value


def averaged_keys(keys: Iterable[str]) -> dict[str, str]:
    """Returns those of averages that the optimizer keeps, each with the key of the weight it is an average of."""
    return {key: match[1] for key in keys if (match := _AVERAGE.fullmatch(key))}


def with_averages(state: State) -> State:
    """Returns a state whose model has its averaged weights, where the optimizer kept an average of them."""
    return {**state, **{weight: state[mean] for mean, weight in averaged_keys(state).items()}}
