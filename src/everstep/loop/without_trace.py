"""Something is tried, and nothing of it is left."""

import contextlib
from collections.abc import Iterator
from typing import Any

from everstep.loop import random_state


@contextlib.contextmanager
def without_trace(trainer: Any) -> Iterator[None]:
    """Sets back, after the block, all that decides how training goes on: every variable, and the random generators.

    An error goes on its way with nothing set back: the attempt is over.

    Args:
      trainer: Has the `engine`, and is at a window's end.
    """
    variables, generators = trainer.engine.state(), random_state.get()
    yield
    trainer.engine.load(variables)
    random_state.set(generators)
