"""The averaged weights in a state that was saved."""

import re
from collections.abc import Iterable

from everstep.optim.ema import SLOT
from everstep.types import State

_AVERAGE = re.compile(rf"optimizer/(?:inner/)*(model/.+)/{SLOT}")


def averaged_keys(keys: Iterable[str]) -> dict[str, str]:
    """Returns those of averages that the optimizer keeps, each with the key of the weight it is an average of."""
    return {key: match[1] for key in keys if (match := _AVERAGE.fullmatch(key))}


def with_averages(state: State) -> State:
    """Returns a state whose model has its averaged weights, where the optimizer kept an average of them."""
    return {**state, **{weight: state[mean] for mean, weight in averaged_keys(state).items()}}
