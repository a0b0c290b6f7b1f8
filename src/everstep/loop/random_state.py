"""The global random generators, Python's and NumPy's, as whole numbers.

Callbacks and actions may draw from `random` and `np.random`. Saved with every checkpoint and restored when a run
resumes, the generators give them the numbers they would have got.
"""

import contextlib
import random
from collections.abc import Iterator
from typing import Any

import numpy as np

from everstep.data import randomness
from everstep.errors import UsageError
from everstep.types import State


def get() -> dict[str, Any]:
    """Returns the state of both generators as plain JSON values."""
    (version, words, gauss), numpy = randomness.outside()
    return {"python": [version, list(words), gauss], "numpy": _listed(numpy)}


def set(state: dict[str, Any]) -> None:
    """Restores both generators to what `get` returned, in this process or another.

    Raises:
      UsageError: NumPy's global generator is of another kind than then.
    """
    version, words, gauss = state["python"]
    here, saved = np.random.get_state(legacy=False)["bit_generator"], state["numpy"]["bit_generator"]
    if here != saved:
        raise UsageError(
            f"the run was saved with {saved} behind np.random, and here it is {here}",
            remedy="call np.random.set_bit_generator as then",
        )
    random.setstate((version, tuple(words), gauss))
    np.random.set_state(state["numpy"])


@contextlib.contextmanager
def untouched() -> Iterator[None]:
    """Numbers that are drawn inside the block, such as those of a model that is loaded, do not count."""
    before = get()
    try:
        yield
    finally:
        set(before)


class RandomState:
    """The generators as a part of a run's state; see `everstep.loop.hooks.Stateful`."""

    name = "random"

    def state(self) -> tuple[State, dict[str, Any]]:
        """Returns no arrays, and both states."""
        return {}, get()

    def check(self, meta: dict[str, Any]) -> None:
        """Accepts any."""

    def restore(self, arrays: State, meta: dict[str, Any]) -> None:
        """Restores both."""
        set(meta)


def _listed(value: Any) -> Any:
    """Returns a bit generator's state with lists in place of arrays."""
    if isinstance(value, dict):
        return {key: _listed(item) for key, item in value.items()}
    return value.tolist() if isinstance(value, np.ndarray) else value
