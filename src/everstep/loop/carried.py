"""What of a state goes on when a run that grows enters its next stage: by key, and where the shape is the same.

Optimizers may wrap each other: `optimizer/inner/…` is what the wrapped one has. The one in the middle, which updates
the weights, goes on as itself whether or not a stage wraps it in others.
"""

import dataclasses
import re

import numpy as np

from everstep.optim.averaged_state import averaged_keys
from everstep.types import State

_LEVELS = re.compile(r"optimizer/(?:inner/)*")
_LASTING = ("model/", "optimizer/", "task.")


@dataclasses.dataclass(frozen=True)
class Carrying:
    """What goes on beside the number of steps, which always does.

    Attributes:
      weights: What the model has learned, its averages, and what the optimizer remembers of it.
      slots: That last part; not where another kind of optimizer begins, which would take it for something else.
      rate: The learning rate, where it is no schedule; not where a stage has an optimizer of its own.
    """

    weights: bool = True
    slots: bool = True
    rate: bool = True

    def takes(self, key: str) -> bool:
        """Whether the variable with this key goes on."""
        if not key.startswith("optimizer/") or averaged_keys([key]):
            return self.weights
        name = key.rpartition("/")[2]
        if name in ("iteration", "learning_rate"):
            return self.rate or name == "iteration"
        return self.weights and self.slots


def carry(before: State, fresh: State, carrying: Carrying) -> tuple[State, int, int]:
    """Returns the state in which a stage begins, and how many of how many variables in it go on.

    Averages of weights that nobody averaged before begin as those weights.

    Args:
      before: The state of the stage before.
      fresh: The state of this one as it was built.
      carrying: What goes on.
    """
    lasting = [key for key in fresh if key.startswith(_LASTING)]
    then, now = _middle(before), _middle(fresh)
    former = {key: before.get(_former_key(key, then, now)) for key in lasting if carrying.takes(key)}
    carried = {key: array for key, array in former.items() if array is not None and _fits(array, fresh[key])}
    state = {**fresh, **carried}
    begun = {mean: state[weight] for mean, weight in averaged_keys(fresh).items() if mean not in carried}
    return {**state, **begun}, len(carried), len(lasting)


def _middle(state: State) -> str:
    """Returns what the keys of the optimizer in the middle begin with."""
    return max((match[0] for key in state if (match := _LEVELS.match(key))), key=len, default="optimizer/")


def _former_key(key: str, then: str, now: str) -> str:
    """Returns the key that a variable had in the stage before; empty where no such optimizer was around."""
    if not key.startswith("optimizer/") or then == now:
        return key
    return then + key.removeprefix(now) if key.startswith(now) else ""


def _fits(array: np.ndarray, other: np.ndarray) -> bool:
    return (array.shape, array.dtype) == (other.shape, other.dtype)
