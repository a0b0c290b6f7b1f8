"""A moving average of the weights, kept by an optimizer that wraps another one.

    optimizer = ExponentialMovingAverage(keras.optimizers.Adam(1e-3), average_decay=0.999)

The averages are variables of the optimizer and are saved with it. They start as copies of the weights. Nothing here
puts them into the model. Two places swap the values of `pairs()`, and swap them back: evaluations during training
(`loop/trainer.py`, `Trainer.averaged`) and exports (`export/model_export.py`, `evaluated_weights`). Where a checkpoint
is only evaluated, `with_averages` takes its averages in place of its weights.
"""

import functools
import re
from collections.abc import Iterable, Sequence
from typing import Any

import keras
from keras import ops

from everstep.errors import UsageError
from everstep.types import StoredState

SLOT = "moving_average"
"""The last part of the state key of an average: `optimizer/<key of the variable>/moving_average`."""

_AVERAGE = re.compile(rf"optimizer/(?:inner/)*(model/.+)/{SLOT}")


@keras.saving.register_keras_serializable(package="everstep")
class ExponentialMovingAverage(keras.optimizers.Optimizer):
    """Applies gradients with another optimizer, then updates a moving average of every weight.

    After each update of the weights `average = decay * average + (1 - decay) * weight`, with the method `decay`. A step
    that updates no weights (gradients are accumulated, or not finite under loss scaling) updates no average.

    Args:
      inner_optimizer: The optimizer that updates the weights.
      trainable_weights_only: False also averages non-trainable weights of the model, such as the statistics of batch
        normalization; `track` must be called with the model. Seeds and integers are never averaged.
      average_decay: The fraction of the previous average that an update keeps.
      start_step: Before this step the averages are copies of the weights.
      dynamic_decay: Whether to keep less in the first steps.
      name: The name of the optimizer.
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
        self._trained = 0  # the number of averaged variables that are trained

    def track(self, model: keras.Model) -> None:
        """Sets the model whose non-trainable weights are averaged if `trainable_weights_only` is False.

        Called once, before training. The model need not be built yet, but the optimizer must not be built.

        Raises:
          UsageError: The optimizer is already built.
        """
        if self.trainable_weights_only:
            return
        if self.built:
            raise UsageError(
                "is called too late",
                key="track(model)",
                remedy="call it before the optimizer is built or applies gradients",
            )
        object.__setattr__(self, "_model", model)  # Keras would track the model as a part of the optimizer

    def start(self) -> None:
        """Makes the averages copies of the weights, for weights that were loaded after the optimizer was built."""
        for variable, average in self.pairs():
            average.assign(variable)

    def pairs(self) -> list[tuple[keras.Variable, keras.Variable]]:
        """Returns every averaged variable of the model with the variable that holds its average."""
        return list(zip(self._trainable_variables, self._averages, strict=True))

    def decay(self, step: Any) -> Any:
        """Returns the fraction of the previous average that the update at the end of `step` keeps.

        It is 0 before `start_step`, and `average_decay` from there on; with `dynamic_decay` at most
        `(1 + n) / (10 + n)`, where n is `step - start_step`.
        """
        since = ops.cast(step, "float32") - float(self.start_step)
        decay: Any = self.average_decay
        if self.dynamic_decay:
            n = ops.maximum(since, 0.0)
            decay = ops.minimum((1.0 + n) / (10.0 + n), decay)
        return ops.where(since < 0, 0.0, decay)

    # -- the interface of Keras optimizers ---------------------------------------------------------------------------

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
                "the model whose weights are averaged is unknown",
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
            aggregation="only_first_replica",  # the weights are the same on all replicas
            # Not `average`, the name of the averages of Keras's own `use_ema`, which are not evaluated.
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
        """Returns the values of the trained variables and of the optimizer after `apply`."""
        trained, others = self._trainable_variables[: self._trained], self._trainable_variables[self._trained :]
        values = [*trainable_variables, *map(_current, others), *optimizer_variables]
        mapping = list(zip([*trained, *others, *self.variables], values, strict=True))
        with keras.StatelessScope(state_mapping=mapping) as scope:
            self.apply(grads, trained)
        now = scope.get_current_value
        return [now(variable) for variable in trained], [now(variable) for variable in self.variables]

    @property
    def variables(self) -> list[keras.Variable]:
        """The averages and the variables of the inner optimizer, which holds iterations and learning rate."""
        return [*self._averages, *self.inner_optimizer.variables]

    @property
    def iterations(self) -> Any:
        """The number of updates of the weights so far."""
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
        """Lets the inner optimizer finalize the weights."""
        self.inner_optimizer.finalize_variable_values(var_list)

    def get_config(self) -> dict[str, Any]:
        """Returns the arguments, for saving."""
        names = ("name", "trainable_weights_only", "average_decay", "start_step", "dynamic_decay")
        inner = keras.saving.serialize_keras_object(self.inner_optimizer)
        return {"inner_optimizer": inner, **{name: getattr(self, name) for name in names}}

    @classmethod
    def from_config(cls, config: dict[str, Any], custom_objects: Any = None) -> "ExponentialMovingAverage":
        """Creates an optimizer from the result of `get_config`."""
        deserialize = functools.partial(keras.saving.deserialize_keras_object, custom_objects=custom_objects)
        return cls(**{**config, "inner_optimizer": deserialize(config["inner_optimizer"])})


def find_average(optimizer: Any) -> ExponentialMovingAverage | None:
    """Returns the first moving average among an optimizer and those it wraps; None if there is none."""
    while optimizer is not None and not isinstance(optimizer, ExponentialMovingAverage):
        optimizer = getattr(optimizer, "inner_optimizer", None)
    return optimizer


def _current(variable: keras.Variable) -> Any:
    """Returns the value of a variable in the enclosing scopes, which Keras's nested scopes would hide."""
    with keras.StatelessScope() as here:
        scope = here.original_scope
    while scope is not None:
        value = scope.get_current_value(variable)
        if value is not None:
            return value
        scope = scope.original_scope
    return variable.value


def averaged_keys(keys: Iterable[str]) -> dict[str, str]:
    """Returns the keys of averages, each with the key of its weight."""
    return {key: match[1] for key in keys if (match := _AVERAGE.fullmatch(key))}


def with_averages(state: StoredState) -> StoredState:
    """Returns a state with the averages in place of the weights, for weights that have one."""
    return {**state, **{weight: state[mean] for mean, weight in averaged_keys(state).items()}}
