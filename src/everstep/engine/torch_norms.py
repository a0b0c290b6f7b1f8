"""Batch normalization in one operation forward and one backward.

Keras casts activations to float32, computes mean and variance, and normalizes in about twenty operations, each of which
reads and writes all activations. PyTorch's reads bfloat16, computes in float32 and writes bfloat16. What differs is
rounding: PyTorch computes the variance from differences to the mean, which is the more exact way.

PyTorch averages the unbiased variance, Keras the biased one. So the average is passed multiplied by `n / (n - 1)`, and
divided afterwards: what PyTorch adds to it is then in proportion.
"""

from collections.abc import Callable
from typing import Any

import keras
import torch

from everstep.engine.torch_forms import NORMS, form
from everstep.engine.torch_layouts import channels_last, channels_second
from everstep.keras_internals import get_device, global_state

HALF = (torch.bfloat16, torch.float16)


@form(NORMS, lambda: keras.layers.BatchNormalization, "call")
def _in_one_operation(original: Callable[..., Any]) -> Callable[..., Any]:
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
    if any(variable is not None and variable.dtype != "float32" for variable in held):
        return False
    if inputs.dtype not in (torch.float32, *HALF) or not 2 <= inputs.ndim <= 5:
        return False
    axis = layer.axis % inputs.ndim
    return axis in (1, inputs.ndim - 1) and inputs.numel() > inputs.shape[axis]


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
