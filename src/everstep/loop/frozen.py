"""`FrozenWeights`: which variables a checkpoint does not contain, because no step changes them, and where they are.

The engine knows which variables no step changes (`Engine.frozen`). User code between steps may still change one, as a
callback that thaws a layer does. So at each save the checksums of all of them are compared with those of the base: a
variable that has changed is saved with every checkpoint from then on.
"""

import logging
from collections.abc import Sequence

import numpy as np

from everstep.checkpoint import Base
from everstep.engine import Engine
from everstep.types import OwnState

logger = logging.getLogger(__name__)

SMALLEST = 64 << 10
"""Bytes of frozen weights below which they stay in the checkpoints: a base would save nothing."""


class FrozenWeights:
    """The frozen weights of a built engine.

    Args:
      engine: The engine.
      name: What `Task.base_weights` returned.
    """

    def __init__(self, engine: Engine, name: str = "") -> None:
        self._engine, self._name = engine, name
        # The name stands for weights of the model; an evaluation may not have the attributes of the task.
        keys = [key for key in engine.frozen if not name or key.startswith("model/")]
        self._keys = keys if name or self._bytes(keys) >= SMALLEST else []
        self._built = engine.checksums(self._keys) if name else {}
        self._sums: dict[str, int] = {}
        self._base: Base | None = None

    def base(self) -> Base | None:
        """Returns the base that a checkpoint refers to now, if any; `keys` are those that it does not contain."""
        sums = self._engine.checksums(self._keys)
        if self._base is not None and sums != self._sums:
            self._drop([key for key in self._keys if sums[key] != self._sums[key]])
            sums = {key: sums[key] for key in self._keys}
        if self._base is None and self._keys:
            name = self._name if sums == {key: self._built.get(key) for key in sums} else ""
            if self._name and not name:
                logger.warning("the frozen weights are not those of %s any more: they are saved once", self._name)
            self._base = Base(self._engine.digest_of(self._keys), name, len(self._keys))
            self._sums = sums
        return self._base

    @property
    def keys(self) -> Sequence[str]:
        """The variables of the base that `base` has returned."""
        return self._keys if self._base is not None else ()

    @property
    def candidates(self) -> Sequence[str]:
        """The variables that the base has, or will have unless user code changes them."""
        return self._keys

    def values(self) -> OwnState:
        """Returns what this process has of the variables of the base."""
        return self._engine.own_weights(self._keys)

    def _drop(self, changed: Sequence[str]) -> None:
        """Removes variables that are not frozen after all."""
        more = f" and {len(changed) - 1} more" if len(changed) > 1 else ""
        logger.warning(
            "%s%s is not trainable, and no step assigns it, but it has changed: it is saved with each checkpoint from "
            "now on",
            changed[0],
            more,
        )
        keys = [key for key in self._keys if key not in changed]
        self._keys = keys if self._name or self._bytes(keys) >= SMALLEST else []
        self._base = None

    def _bytes(self, keys: Sequence[str]) -> int:
        variables = [self._engine.variables[key] for key in keys]
        return sum(int(np.prod(variable.shape)) * _item_size(variable.dtype) for variable in variables)


def _item_size(dtype: str) -> int:
    """Returns the bytes of a number; those of types that NumPy does not know are small ones."""
    try:
        return np.dtype(dtype).itemsize
    except TypeError:
        return 2 if dtype == "bfloat16" else 1
