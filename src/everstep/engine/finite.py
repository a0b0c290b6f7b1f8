"""Which variables hold NaN or an infinity: looked for before each save, and before an evaluation or a callback."""

from collections.abc import Mapping

import numpy as np

from everstep.gang import current_gang
from everstep.types import ArrayParts

_PIECE = 1 << 20  # elements checked at a time: they fit into the processor's cache


def non_finite(state: Mapping[str, np.ndarray | ArrayParts]) -> list[str]:
    """Returns the keys of the arrays that hold NaN or an infinity; of one that is divided, in the parts of any process.

    Where arrays are divided over several processes, all of them must call it.
    """
    keys = []
    for key, array in state.items():
        parts = [part for _, part in array.parts] if isinstance(array, ArrayParts) else [np.asarray(array)]
        if not all(map(_is_finite, parts)):
            keys.append(key)
    if any(isinstance(array, ArrayParts) for array in state.values()):
        anywhere = {key for found in current_gang().gather("what is not finite", keys) for key in found}
        keys = [key for key in state if key in anywhere]
    return keys


def _is_finite(array: np.ndarray) -> bool:
    if array.dtype.kind in "biuUS" or array.size == 0:
        return True
    flat = array.reshape(-1)
    return all(np.isfinite(flat[begin : begin + _PIECE]).all() for begin in range(0, flat.size, _PIECE))
