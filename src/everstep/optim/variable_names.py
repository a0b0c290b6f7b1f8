"""Which variables a list of regular expressions means.

Keras's own paths will not do: they count the models that the process has built, so that the second one has
`sequential_1/dense_2/bias` where the first had `sequential/dense/bias`, and a run that goes on would choose others. Who
joins an optimizer with a model therefore says what the variables are called there, in every process the same.
"""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import keras

Names = Callable[[], Mapping[int, str]]
"""Returns the names of variables by their ids, when they are needed: layers may be built later than optimizers."""


def matches(patterns: Iterable[str], name: str) -> bool:
    """Tells whether one of the expressions is found in a variable's name, such as `encoder/layer_norm/bias`.

    One that was written for TensorFlow 1, whose names end with `:0`, is found as well: `(kernel|weight):0$`.
    """
    return any(re.search(pattern, spelled) for pattern in patterns for spelled in (name, f"{name}:0"))


def name_variables(optimizer: Any, names: Names) -> None:
    """Hands the names to an optimizer, and to those it wraps; one that does not choose by name has no use for them."""
    while isinstance(optimizer, keras.optimizers.Optimizer):
        if isinstance(optimizer, ChoosesByName):
            optimizer.name_variables(names)
        optimizer = getattr(optimizer, "inner_optimizer", None)


class ChoosesByName(keras.optimizers.Optimizer):
    """An optimizer that treats variables differently by their names; a subclass says how in `_choose`."""

    _names: Names = staticmethod(dict)

    def name_variables(self, names: Names) -> None:
        """Says what the variables are called; one that nobody names is searched by its Keras path."""
        self._names = names
        if self.built:
            self._choose(self._trainable_variables)

    def build(self, variables: Sequence[keras.Variable]) -> None:
        """Chooses, and builds the optimizer."""
        if not self.built:
            self._choose(variables)
        super().build(variables)

    def _choose(self, variables: Sequence[keras.Variable]) -> None:
        """Settles what is done with each variable."""
        raise NotImplementedError

    def _named(self, variables: Sequence[keras.Variable]) -> list[str]:
        names = self._names()
        return [names.get(id(variable), variable.path) for variable in variables]
