"""Random numbers of a step on PyTorch: all of them follow from seeds that are part of the state.

Keras draws its numbers there from seed generators, as elsewhere, but for `Dropout`: its layers use PyTorch's global
generator, which no checkpoint of variables holds. Here they are seeded from the layer's own generator, and the global
one is left as it was.
"""

import contextlib
from collections.abc import Iterator
from typing import Any

import keras.src.backend.torch.random as keras_random
import torch
from keras.src.backend.torch.core import get_device

from everstep.errors import UsageError


@contextlib.contextmanager
def seeded_dropout() -> Iterator[None]:
    """Inside the block `Dropout` draws from the layer's seed generator."""
    original = keras_random.dropout

    def dropout(inputs: Any, rate: float, noise_shape: Any = None, seed: Any = None) -> Any:
        if noise_shape is not None or get_device() == "meta":
            return original(inputs, rate, noise_shape, seed)
        with _seeded(int(keras_random.draw_seed(seed).sum()) & 0xFFFFFFFF):
            return torch.nn.functional.dropout(inputs, p=rate, training=True)

    keras_random.dropout = dropout
    try:
        yield
    finally:
        keras_random.dropout = original


@contextlib.contextmanager
def nothing_drawn(task: Any) -> Iterator[None]:
    """Refuses a step that draws from PyTorch's global generator; after the block that one is as it was.

    Raises:
      UsageError: It does: a run that goes on would draw other numbers.
    """
    generator = _generator()
    before = generator.get_state()
    try:
        yield
        drawn = not torch.equal(before, generator.get_state())
    finally:
        generator.set_state(before)
    if drawn:
        raise UsageError(
            f"{type(task).__name__} draws numbers from PyTorch's global generator inside a step: keep "
            "`self.seed = keras.random.SeedGenerator(1)` in the task and use keras.random with `seed=self.seed`"
        )


@contextlib.contextmanager
def _seeded(seed: int) -> Iterator[None]:
    generator = _generator()
    before = generator.get_state()
    generator.manual_seed(seed)
    try:
        yield
    finally:
        generator.set_state(before)


def _generator() -> torch.Generator:
    """Returns the global generator of the device that computes."""
    device = torch.device(get_device())
    if device.type != "cuda":
        return torch.default_generator
    return torch.cuda.default_generators[device.index or torch.cuda.current_device()]
