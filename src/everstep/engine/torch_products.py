"""Dense layers whose product adds the bias.

Keras multiplies, writes the result, and adds the bias in another pass over it. A matrix product of a GPU's library can
add it before it writes; rounded once instead of twice, where results are in half precision.
"""

import functools
from collections.abc import Callable
from typing import Any

import keras
import torch

from everstep.engine.torch_forms import PRODUCTS, form
from everstep.keras_internals import get_device


@form(PRODUCTS, lambda: keras.layers.Dense, "call")
def _dense(original: Callable[..., Any]) -> Callable[..., Any]:
    def call(self: keras.layers.Dense, inputs: Any, training: Any = None) -> Any:
        outputs = None if self.bias is None else _product(inputs, self.kernel, self.bias, contracted=1)
        if outputs is None:
            return original(self, inputs, training=training)
        return outputs if self.activation is None else self.activation(outputs)

    return call


@form(PRODUCTS, lambda: keras.layers.EinsumDense, "call")
def _einsum_dense(original: Callable[..., Any]) -> Callable[..., Any]:
    def call(self: keras.layers.EinsumDense, inputs: Any, training: Any = None) -> Any:
        contracted = 0 if self.bias is None else _contracted(self.equation)
        outputs = _product(inputs, self.kernel, self.bias, contracted) if contracted else None
        if outputs is None:
            return original(self, inputs, training=training)
        return outputs if self.activation is None else self.activation(outputs)

    return call


@functools.cache
def _contracted(equation: str) -> int:
    """Returns how many axes a product sums over: the last of its input and the first of its kernel; else 0."""
    inputs, _, rest = equation.replace(" ", "").partition(",")
    kernel, _, outputs = rest.partition("->")
    count = sum(axis in inputs and axis not in outputs for axis in kernel)
    is_plain = count < len(inputs) and inputs[-count:] == kernel[:count] and outputs == inputs[:-count] + kernel[count:]
    return count if count and is_plain and equation.isascii() and "." not in equation else 0


def _product(inputs: Any, kernel: Any, bias: Any, contracted: int) -> torch.Tensor | None:
    """Returns inputs times a kernel plus a bias; None where types or shapes are not those of a plain product."""
    kernel, bias = (getattr(one, "value", one) for one in (kernel, bias))
    tensors = inputs, kernel, bias
    if get_device() == "meta" or not all(isinstance(one, torch.Tensor) for one in tensors):
        return None
    types = {one.dtype for one in tensors}
    if (
        len(types) > 1
        or not inputs.is_floating_point()
        or inputs.ndim <= contracted
        or bias.shape != kernel.shape[contracted:]
    ):
        return None
    summed, rest = kernel.shape[:contracted], kernel.shape[contracted:]
    if inputs.shape[inputs.ndim - contracted :] != summed:
        return None
    rows = inputs.flatten(inputs.ndim - contracted)
    outputs = torch.nn.functional.linear(rows, kernel.reshape(summed.numel(), -1).t(), bias.reshape(-1))
    return outputs.reshape(*rows.shape[:-1], *rest)
