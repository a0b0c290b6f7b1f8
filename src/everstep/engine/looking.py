"""Calling a model between two steps, without a trace in the run."""

import contextlib
from collections.abc import Iterator
from typing import Any

import numpy as np

from everstep.engine.engine import Engine


@contextlib.contextmanager
def looking(engine: Engine) -> Iterator[Any]:
    """Inside the block the Keras objects show the state, for whoever calls the model; what that changes is undone.

    Undone is what a call may change: random numbers that were drawn, and variables that are not trained.
    """
    roles = ("model/", "task.")
    keys = [key for key, variable in engine.variables.items() if key.startswith(roles) and not variable.trainable]
    before = engine._copies(keys)
    engine.push()
    try:
        yield engine.model
    finally:
        engine._set(keys, before)
        engine.push()


def weights(engine: Engine) -> dict[str, np.ndarray]:
    """Returns host copies of the weights that the model learns, by their keys below `model/`."""
    keys = [key for key, variable in engine.variables.items() if key.startswith("model/") and variable.trainable]
    return {key.removeprefix("model/"): value for key, value in engine._copies(keys).items()}
