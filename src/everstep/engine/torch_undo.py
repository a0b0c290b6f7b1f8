"""A step on PyTorch that has not happened: there are no shapes without values, so one is run, and undone."""

import contextlib
from collections.abc import Iterator
from typing import Any

import keras
import torch

from everstep.engine.probe import replaced
from everstep.engine.torch_random import seeded_dropout


@contextlib.contextmanager
def undone() -> Iterator[None]:
    """After the block each variable has the value it had before it, or was made with."""
    before: dict[int, tuple[keras.Variable, torch.Tensor]] = {}
    init, value = keras.Variable.__init__, keras.Variable.value

    def keep(variable: keras.Variable) -> None:
        if id(variable) not in before and isinstance(variable._value, torch.Tensor):
            before[id(variable)] = (variable, variable._value.detach().clone())

    def keeping_init(self: keras.Variable, *args: Any, **kwargs: Any) -> None:
        init(self, *args, **kwargs)
        keep(self)

    def keeping_value(self: keras.Variable) -> Any:
        keep(self)  # who changes a variable has asked for its value first, in Keras's optimizers too
        return value.fget(self)

    with seeded_dropout(), replaced("__init__", keeping_init), replaced("value", property(keeping_value)):
        yield
    with torch.no_grad():
        for variable, kept in before.values():
            variable._value.copy_(kept)
            variable._value.grad = None
