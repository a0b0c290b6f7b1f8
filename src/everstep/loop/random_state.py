"""The global random generators, Python's and NumPy's, as whole numbers.

Callbacks and actions may draw from `random` and `np.random`. The generators are saved with every checkpoint and
restored when a run resumes, so that these draw the same numbers as in an uninterrupted run.
"""

import contextlib
import random
from collections.abc import Iterator
from typing import Any

import numpy as np

from everstep.data import randomness
from everstep.errors import UsageError
from everstep.loop.hooks import StatePart
from everstep.types import State


def get() -> dict[str, Any]:
    """Returns the state of both generators as plain JSON values."""
    (version, words, gauss), numpy = randomness.outside()
    return {"python": [version, list(words), gauss], "numpy": _listed(numpy)}


def set(state: dict[str, Any]) -> None:
    """Restores both generators to what `get` returned, in this process or another.

    Raises:
      UsageError: NumPy's global generator is of another kind now.
    """
    version, words, gauss = state["python"]
    here, saved = np.random.get_state(legacy=False)["bit_generator"], state["numpy"]["bit_generator"]
    if here != saved:
        raise UsageError(
            f"is {here}, but the run was saved with {saved}",
            key="the bit generator of np.random",
            remedy="call np.random.set_bit_generator with the same kind",
        )
    random.setstate((version, tuple(words), gauss))
    np.random.set_state(state["numpy"])


@contextlib.contextmanager
def untouched() -> Iterator[None]:
    """After the block the generators are as before it, whatever it draws, such as a model that is loaded."""
    before = get()
    try:
        yield
    finally:
        set(before)


class RandomState(StatePart):
    """The generators as a part of a run's state."""

    name = "random"

    def state(self) -> tuple[State, dict[str, Any]]:
        """Returns no arrays, and both states."""
        return {}, get()

    def restore(self, arrays: State, meta: dict[str, Any]) -> None:
        """Restores both generators."""
        set(meta)


def _listed(value: Any) -> Any:
    """Returns a bit generator's state with lists in place of arrays."""
    if isinstance(value, dict):
        return {key: _listed(item) for key, item in value.items()}
    return value.tolist() if isinstance(value, np.ndarray) else value
