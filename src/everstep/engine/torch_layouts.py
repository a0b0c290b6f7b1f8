"""Convolutions and pooling of Keras's NHWC layers without copies.

PyTorch numbers the axes of an image as NCHW, in whatever order they are in memory. An NHWC image whose axes are
permuted is an NCHW image in the memory format `channels_last`, which cuDNN's fastest kernels want. Keras permutes, but
then copies to contiguous NCHW, and for convolutions back to `channels_last`. Here the permuted image is passed as it
is: the same numbers in the same layout reach cuDNN, so that convolutions keep their bits.

A kernel is HWIO in Keras and OIHW in PyTorch. It is copied once per call, which is small. Its gradient comes back in
cuDNN's order; it is copied to the order of the variable, since PyTorch updates many variables at once only if all
tensors of a variable have the same strides.
"""

from collections.abc import Callable
from typing import Any

import torch

from everstep.engine.torch_forms import LAYOUTS, form
from everstep.keras_internals import get_device, torch_nn


def channels_second(x: torch.Tensor) -> torch.Tensor:
    """Returns a view of a tensor with its last axis moved to the second place."""
    return x.permute(0, x.ndim - 1, *range(1, x.ndim - 1))


def channels_last(x: torch.Tensor) -> torch.Tensor:
    """Returns a view of a tensor with its second axis moved to the end."""
    return x.permute(0, *range(2, x.ndim), 1)


@form(LAYOUTS, lambda: torch_nn, "_transpose_spatial_inputs")
def _without_copy(original: Callable[..., Any]) -> Callable[..., Any]:
    def transpose(inputs: torch.Tensor) -> torch.Tensor:
        return original(inputs) if get_device() == "meta" else channels_second(inputs)

    return transpose


@form(LAYOUTS, lambda: torch_nn, "_transpose_conv_kernel")
def _with_ordered_gradient(original: Callable[..., Any]) -> Callable[..., Any]:
    def transpose(kernel: torch.Tensor) -> torch.Tensor:
        if get_device() == "meta" or not kernel.requires_grad:
            return original(kernel)
        transposed: torch.Tensor = _Transposed.apply(kernel)
        return transposed

    return transpose


class _Transposed(torch.autograd.Function):
    """A view of a kernel with its axes in PyTorch's order; its gradient is contiguous in Keras's order."""

    @staticmethod
    def forward(context: Any, kernel: torch.Tensor) -> torch.Tensor:
        last = kernel.ndim - 1
        return kernel.permute(last, last - 1, *range(last - 1))

    @staticmethod
    def backward(context: Any, gradient: torch.Tensor) -> Any:
        return gradient.permute(*range(2, gradient.ndim), 1, 0).contiguous()
