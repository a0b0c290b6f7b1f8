"""AdamW whose weight decay is chosen by the variables' names."""

from collections.abc import Sequence
from typing import Any

import keras

from everstep.optim.variable_names import ChoosesByName, matches


@keras.saving.register_keras_serializable(package="everstep")
class SelectiveAdamW(ChoosesByName, keras.optimizers.AdamW):
    """Keras's AdamW, without decay for the variables that `exclude` matches and `include` does not.

    Keras compares its own exclusions with a variable's bare name (`bias`); these regular expressions are
    searched in the whole one (`encoder/layer_norm/bias`), so that a layer can be named as well.
    """

    def __init__(self, *args: Any, include: Sequence[str] = (), exclude: Sequence[str] = (), **kwargs: Any) -> None:
        """Takes AdamW's arguments and the two lists of regular expressions."""
        kwargs.setdefault("name", "adamw")  # its slots are AdamW's, and are saved under the same keys
        super().__init__(*args, **kwargs)
        self.include = list(include)
        self.exclude = list(exclude)

    def _choose(self, variables: Sequence[keras.Variable]) -> None:
        named = zip(variables, self._named(variables), strict=True)
        self.exclude_from_weight_decay(var_list=[variable for variable, name in named if not self.decays(name)])

    def decays(self, name: str) -> bool:
        """Tells whether the variable of this name decays; `include` is asked before `exclude`."""
        return matches(self.include, name) or not matches(self.exclude, name)

    def get_config(self) -> dict[str, Any]:
        """Returns the arguments, for saving."""
        return {**super().get_config(), "include": self.include, "exclude": self.exclude}
