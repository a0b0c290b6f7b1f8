"""Batch and group normalization in one operation forward and one backward.

Keras casts activations to float32, computes mean and variance, and normalizes in about twenty operations, each of which
reads and writes all activations. PyTorch's reads bfloat16, computes in float32 and writes bfloat16. What differs is
rounding: PyTorch computes the variance from differences to the mean, which is the more exact way.

PyTorch averages the unbiased variance, Keras the biased one. So the average is passed multiplied by `n / (n - 1)`, and
divided afterwards: what PyTorch adds to it is then in proportion.

Group normalization is in float32 with the channels first, as PyTorch has it on a GPU: one copy before and one after.
Keras's layer normalization uses PyTorch's already.
"""

from collections.abc import Callable, Sequence
from typing import Any

import keras
import torch

from everstep.engine.torch_forms import NORMS, form
from everstep.engine.torch_layouts import channels_last, channels_second
from everstep.keras_internals import get_device, global_state


@form(NORMS, lambda: keras.layers.BatchNormalization, "call")
def _batch_normalization(original: Callable[..., Any]) -> Callable[..., Any]:
    def call(self: keras.layers.BatchNormalization, inputs: Any, training: Any = None, mask: Any = None) -> Any:
        if get_device() == "meta" or not isinstance(inputs, torch.Tensor):
            return original(self, inputs, training=training, mask=mask)
        batch = bool(training and self.trainable)  # whether to use the statistics of the batch
        if not _applies(self, inputs) or (batch and (mask is not None or self.renorm)):
            return original(self, inputs, training=training, mask=mask)
        is_last = self.axis in (-1, inputs.ndim - 1) and inputs.ndim > 2
        x = inputs.unsqueeze(1) if is_last and inputs.ndim == 3 else inputs  # images have layouts that rows lack
        outputs = _normalized(self, channels_second(x) if is_last else x, batch)
        outputs = channels_last(outputs) if is_last else outputs
        return keras.ops.cast(outputs.reshape(inputs.shape), self.compute_dtype)

    return call


def _applies(layer: keras.layers.BatchNormalization, inputs: torch.Tensor) -> bool:
    """Whether PyTorch computes what Keras does: statistics and parameters in float32, over all axes but one."""
    held = [layer.gamma, layer.beta, layer.moving_mean, layer.moving_variance]
    if not _in_float32(held, inputs) or not 2 <= inputs.ndim <= 5:
        return False
    axis = layer.axis % inputs.ndim
    return axis in (1, inputs.ndim - 1) and inputs.numel() > inputs.shape[axis]


def _in_float32(variables: Sequence[Any], inputs: torch.Tensor) -> bool:
    known = inputs.dtype in (torch.float32, torch.bfloat16, torch.float16)
    return known and all(one is None or one.dtype == "float32" for one in variables)


def _normalized(layer: keras.layers.BatchNormalization, x: torch.Tensor, batch: bool) -> torch.Tensor:
    """Returns normalized activations whose channels are the second axis; updates the averages of a batch."""
    gamma, beta = (None if one is None else one.value for one in (layer.gamma, layer.beta))
    averages = layer.moving_mean, layer.moving_variance
    mean, variance = (one.value.data for one in averages)  # so that a change is none of a value that autograd has saved
    if not batch:
        return torch.batch_norm(x, gamma, beta, mean, variance, False, 0.0, layer.epsilon, _cudnn())
    in_scope = global_state.get_global_attribute("stateless_scope") is not None  # where nothing is changed in place
    mean = mean.clone() if in_scope else mean
    count = x.numel() // x.shape[1]
    unbiased = variance * (count / (count - 1))
    outputs = torch.batch_norm(x, gamma, beta, mean, unbiased, True, 1.0 - layer.momentum, layer.epsilon, _cudnn())
    variance = torch.mul(unbiased, (count - 1) / count, out=None if in_scope else variance)
    for average, value in zip(averages, (mean, variance), strict=True):
        average.assign(value if in_scope else average)  # an assignment to itself copies nothing, but is seen
    return outputs


def _cudnn() -> bool:
    return torch.backends.cudnn.enabled


@form(NORMS, lambda: keras.layers.GroupNormalization, "call")
def _group_normalization(original: Callable[..., Any]) -> Callable[..., Any]:
    def call(self: keras.layers.GroupNormalization, inputs: Any) -> Any:
        if get_device() == "meta" or not isinstance(inputs, torch.Tensor) or inputs.ndim < 3:
            return original(self, inputs)
        gamma, beta = (None if one is None else one.value for one in (self.gamma, self.beta))
        axis = self.axis % inputs.ndim
        if axis not in (1, inputs.ndim - 1) or not _in_float32([self.gamma, self.beta], inputs) or not inputs.numel():
            return original(self, inputs)
        x = inputs if axis == 1 else channels_second(inputs)
        x = x.to(torch.float32, memory_format=torch.contiguous_format)
        if (gamma is None) != (beta is None):  # PyTorch expects both or none
            gamma = x.new_ones(x.shape[1]) if gamma is None else gamma
            beta = x.new_zeros(x.shape[1]) if beta is None else beta
        outputs = torch.nn.functional.group_norm(x, self.groups, gamma, beta, self.epsilon)
        outputs = outputs if axis == 1 else channels_last(outputs)
        return outputs.to(inputs.dtype, memory_format=torch.contiguous_format)

    return call
