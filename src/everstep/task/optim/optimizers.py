"""Optimizers that Keras lacks, and the selection of variables by name.

An optimizer that treats variables differently by name (weight decay for all but biases) is a `SelectsByName`. The paths
of Keras are not suitable: they count the models that the process has built, so that the second one has
`sequential_1/dense_2/bias` where the first had `sequential/dense/bias`, and a resumed run would select others. So the
caller that combines an optimizer with a model sets names of the variables that are the same in every process
(`set_names`).

`config.py` has the name and the fields of each optimizer, and `building.py` creates it from these.
"""

import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import keras
from keras import ops


def held_optimizers(*owners: Any) -> list[keras.Optimizer]:
    """Returns the optimizers in attributes of objects, or in lists and dicts in them, each once; None is skipped.

    An owner that is itself an optimizer is included.
    """
    found: dict[int, keras.Optimizer] = {}
    for owner in owners:
        if owner is not None:
            inside = owner if isinstance(owner, keras.optimizers.Optimizer) else vars(owner)
            found |= {id(one): one for one in _optimizers(inside)}
    return list(found.values())


def _optimizers(value: Any) -> Iterator[keras.Optimizer]:
    if isinstance(value, keras.optimizers.Optimizer):
        yield value
    elif isinstance(value, Mapping):
        for item in list(value.values()):
            yield from _optimizers(item)
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _optimizers(item)


def parts_of(optimizer: Any) -> list[keras.Optimizer]:
    """Returns the optimizers that an optimizer consists of, each for other variables; none for most optimizers.

    Keras's `MultiOptimizer` has several. It has no learning rate of its own; each part has one.
    """
    is_divided = isinstance(optimizer, keras.optimizers.MultiOptimizer)
    return list(optimizer.optimizers) if is_divided else []


def with_inner(optimizers: Iterable[keras.Optimizer]) -> Iterator[keras.Optimizer]:
    """Yields optimizers, and those that they wrap or consist of."""
    for optimizer in optimizers:
        yield optimizer
        inner = getattr(optimizer, "inner_optimizer", None)
        yield from with_inner([*parts_of(optimizer), *([] if inner is None else [inner])])


Names = Callable[[], Mapping[int, str]]
"""Returns the names of variables by id; called when they are needed, since layers may be built after optimizers."""


def matches(patterns: Iterable[str], name: str) -> bool:
    """Returns whether one of the expressions is found in the name of a variable, such as `encoder/layer_norm/bias`.

    Expressions for names of TensorFlow 1, which end with `:0`, also match: `(kernel|weight):0$`.
    """
    return any(re.search(pattern, spelled) for pattern in patterns for spelled in (name, f"{name}:0"))


def set_names(optimizer: Any, names: Names) -> None:
    """Passes the names to an optimizer and those it wraps, if they select variables by name."""
    while isinstance(optimizer, keras.optimizers.Optimizer):
        parts: tuple[Any, ...] = optimizer, getattr(optimizer, "layer_rates", None)
        for part in parts:
            if hasattr(part, "name_variables"):
                part.name_variables(names)
        for part in parts_of(optimizer):
            set_names(part, names)
        optimizer = getattr(optimizer, "inner_optimizer", None)


class SelectsByName(keras.optimizers.Optimizer):
    """An optimizer that treats variables differently by name; a subclass implements `_select`."""

    _names: Names = staticmethod(dict)

    def name_variables(self, names: Names) -> None:
        """Sets the names of the variables; for a variable without a name its Keras path is used."""
        self._names = names
        if self.built:
            self._select(self._trainable_variables)

    def build(self, variables: Sequence[keras.Variable]) -> None:
        """Selects variables, and builds the optimizer."""
        if not self.built:
            self._select(variables)
        super().build(variables)

    def _select(self, variables: Sequence[keras.Variable]) -> None:
        """Decides how each variable is treated."""
        raise NotImplementedError

    def _named(self, variables: Sequence[keras.Variable]) -> list[str]:
        names = self._names()
        return [names.get(id(variable), variable.path) for variable in variables]


@keras.saving.register_keras_serializable(package="everstep")
class SelectiveAdamW(SelectsByName, keras.optimizers.AdamW):
    """Keras's AdamW, without weight decay for the variables that `exclude` matches and `include` does not.

    Keras compares its own exclusions with the last part of a name (`bias`); these regular expressions are searched in
    the whole name (`encoder/layer_norm/bias`), so that they can also select layers.
    """

    def __init__(self, *args: Any, include: Sequence[str] = (), exclude: Sequence[str] = (), **kwargs: Any) -> None:
        """Takes AdamW's arguments and the two lists of regular expressions."""
        kwargs.setdefault("name", "adamw")  # its slots are saved under the same keys as those of AdamW
        super().__init__(*args, **kwargs)
        self.include = list(include)
        self.exclude = list(exclude)

    def _select(self, variables: Sequence[keras.Variable]) -> None:
        named = zip(variables, self._named(variables), strict=True)
        self.exclude_from_weight_decay(var_list=[variable for variable, name in named if not self.decays(name)])

    def decays(self, name: str) -> bool:
        """Returns whether the variable of this name decays; `include` takes precedence over `exclude`."""
        return matches(self.include, name) or not matches(self.exclude, name)

    def get_config(self) -> dict[str, Any]:
        """Returns the arguments, for saving."""
        return {**super().get_config(), "include": self.include, "exclude": self.exclude}


def dense(gradient: Any, variable: Any) -> Any:
    """Returns a gradient as a dense array of the shape and type of its variable; tapes return slices for embeddings."""
    return ops.cast(ops.reshape(gradient, tuple(variable.shape)), variable.dtype)


# -- LAMB and LARS: for large batches, with steps relative to each variable's norm ------------------------------------

# Keras has a Lamb, but it subtracts the weight decay from the variable before it measures the update; in the paper the
# decay is part of the update, whose norm the step is divided by. Keras has no LARS.


def trust_ratio(variable: Any, update: Any, share: float = 1.0) -> Any:
    """Returns `share` times the norm of a variable over that of its update; 1 if one of them is 0."""
    weight, change = ops.sqrt(ops.sum(ops.square(variable))), ops.sqrt(ops.sum(ops.square(update)))
    ones = ops.ones_like(change)
    ratio = share * weight / ops.where(change > 0, change, ones)
    return ops.where(ops.logical_and(weight > 0, change > 0), ratio, ones)


class _Layerwise(SelectsByName):
    """Weight decay and adaptation to the norm of each variable, with exclusions by name."""

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

    def _select(self, variables: Sequence[keras.Variable]) -> None:
        names, rate = self._named(variables), self.weight_decay_rate
        self._decays = [0.0 if matches(self.exclude_from_decay, name) else rate for name in names]
        self._adapts = [not matches(self.exclude_from_adaptation, name) for name in names]

    def _decayed(self, update: Any, variable: Any) -> Any:
        """Returns an update plus the weight decay of its variable."""
        rate = self._decays[self._get_variable_index(variable)]
        return update + rate * variable if rate else update

    def _scaled(self, learning_rate: Any, variable: Any, update: Any, share: float = 1.0) -> Any:
        """Returns the learning rate of a variable, adapted to its norm unless it is excluded."""
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
    """Gradient descent with momentum, in steps of `eeta` times the norm of the variable (You et al., 2017).

    Args:
      learning_rate: A float, or a schedule.
      momentum: Fraction of the last update that is kept.
      eeta: The length of a step as a fraction of the norm of the variable.
      nesterov: Whether to look ahead along the momentum.
      classic_momentum: Whether the momentum accumulates updates, each scaled by its learning rate and norm. Otherwise
        it accumulates gradients, and their sum is scaled.
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


# -- Muon: orthogonal updates for matrices ----------------------------------------------------------------------------


@keras.saving.register_keras_serializable(package="everstep")
class Muon(SelectsByName, keras.optimizers.Muon):
    """Keras's Muon; which matrices AdamW updates depends on names that are the same in every process.

    `exclude_layers` are regular expressions that are searched in the whole name, `block_0/attention/output/kernel`.
    """

    def _select(self, variables: Sequence[keras.Variable]) -> None:
        named = zip(variables, self._named(variables), strict=True)
        self._of_adamw = {id(variable) for variable, name in named if self._excludes(variable, name)}

    def _excludes(self, variable: keras.Variable, name: str) -> bool:
        is_embedding = self.exclude_embeddings and "embedding" in name.lower()
        return len(variable.shape) != 2 or is_embedding or matches(self.exclude_layers, name)

    def _should_use_adamw(self, variable: Any) -> bool:
        return id(variable) in self._of_adamw

    def update_step(self, gradient: Any, variable: Any, learning_rate: Any) -> None:
        """Updates one variable and its moments."""
        super().update_step(dense(gradient, variable), variable, ops.cast(learning_rate, variable.dtype))

    def lr_adjust(self, x: Any) -> Any:
        """Scales an update to the size of one of AdamW; Keras's own is in float32 for variables of every type."""
        return x if self.rms_rate is None else x * (self.rms_rate * math.sqrt(max(x.shape)))


# -- Adafactor: a row and a column of second moments instead of a matrix ----------------------------------------------

# Keras has an Adafactor, but it also keeps the whole matrix of second moments, and limits every learning rate, even
# that of a schedule, to one over the square root of the step, with any `relative_step`.


@keras.saving.register_keras_serializable(package="everstep")
class Adafactor(keras.optimizers.Optimizer):
    """Steps relative to the weights, with factored second moments (Shazeer and Stern, 2018).

    Args:
      learning_rate: A float, or a schedule: the largest step, as a fraction of the root mean square of the variable.
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
        """Creates a row and a column for variables of two or more dimensions, and whole moments for the others."""
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

        It is divided by the root of the row and then by that of the column. Their product would underflow if both are
        tiny, as for a gradient that was always zero.
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
