"""Updates of all variables in as few passes over them as possible.

A step of Adam in Keras is ten operations over all variables, with 25 reads and writes of memory. PyTorch's fused one
has 7. It differs in where epsilon is added: PyTorch divides the root of the second moment by its bias correction before
it adds epsilon, Keras multiplies the learning rate by it. With a number of steps of infinity PyTorch's corrections are
1, and Keras's are in the learning rate: that is exactly Keras's formula.

SGD in Keras has the learning rate in its momentum. So the gradients are multiplied by it before PyTorch's fused update,
whose own learning rate is then -1.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from keras import ops

from everstep.engine.torch_forms import UPDATES, form
from everstep.keras_internals import base_optimizer, torch_adam, torch_sgd
from everstep.keras_internals import torch_parallel_optimizer as parallel


def _ordered(gradients: Sequence[torch.Tensor], variables: Sequence[Any]) -> list[torch.Tensor]:
    """Returns gradients with the strides of their variables, without which PyTorch updates them one by one."""
    return [_like(gradient, one.value) for gradient, one in zip(gradients, variables, strict=True)]


def _like(gradient: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
    if gradient.stride() == value.stride() or not value.is_contiguous():
        return gradient
    return gradient.contiguous().as_strided(value.shape, value.stride())  # axes of size 1 may have any stride


@form(UPDATES, lambda: parallel.TorchParallelOptimizer, "_backend_update_step")
def _with_ordered_gradients(original: Callable[..., Any]) -> Callable[..., Any]:
    def update(self: Any, grads: Any, trainable_variables: Any, learning_rate: Any) -> Any:
        return original(self, _ordered(grads, trainable_variables), trainable_variables, learning_rate)

    return update


@form(UPDATES, lambda: torch_adam.Adam, "_parallel_update_step")
def _fused_adam(original: Callable[..., Any]) -> Callable[..., Any]:
    def update(self: Any, grads: Any, variables: Any, learning_rate: Any) -> Any:
        slots = [self._momentums, self._velocities, *([self._velocity_hats] if self.amsgrad else [])]
        held = [[slot[self._get_variable_index(one)].value for one in variables] for slot in slots]
        values = [one.value for one in variables]
        if not _fusible(values, grads, *held):
            return original(self, grads, variables, learning_rate)
        step = ops.cast(self.iterations + 1, "float32")
        powers = [ops.power(ops.cast(beta, "float32"), step) for beta in (self.beta_1, self.beta_2)]
        rate = ops.cast(learning_rate, "float32") * ops.sqrt(1 - powers[1]) / (1 - powers[0])
        momentums, velocities, maxima = (*held, [])[:3]
        endless = torch.full((), float("inf"), dtype=torch.float32, device=values[0].device)
        torch._fused_adam_(
            *(values, grads, momentums, velocities, maxima, [endless] * len(values)),
            lr=rate,
            beta1=self.beta_1,
            beta2=self.beta_2,
            weight_decay=0.0,
            eps=self.epsilon,
            amsgrad=bool(self.amsgrad),
            maximize=False,
        )
        return None

    return update


@form(UPDATES, lambda: torch_sgd.SGD, "_parallel_update_step")
def _fused_sgd(original: Callable[..., Any]) -> Callable[..., Any]:
    def update(self: Any, grads: Any, variables: Any, learning_rate: Any) -> Any:
        values = [one.value for one in variables]
        momentums = [self.momentums[self._get_variable_index(one)].value for one in variables] if self.momentum else []
        if not _fusible(values, grads, *([momentums] if momentums else [])):
            return original(self, grads, variables, learning_rate)
        steps = torch._foreach_mul(grads, -ops.cast(learning_rate, "float32"))
        if not self.momentum:
            torch._foreach_add_(values, steps)
            return None
        torch._fused_sgd_(
            *(values, steps, momentums),
            weight_decay=0.0,
            momentum=self.momentum,
            lr=-1.0,
            dampening=0.0,
            nesterov=bool(self.nesterov),
            maximize=False,
            is_first_step=False,
        )
        return None

    return update


def _fusible(*lists: Sequence[Any]) -> bool:
    """Whether all tensors of each variable are in float32 on one device, with the same strides."""
    device = lists[0][0].device
    return all(
        tensor is not None
        and (tensor.dtype, tensor.device, tensor.stride()) == (torch.float32, device, tensors[0].stride())
        for tensors in zip(*lists, strict=True)
        for tensor in tensors
    )


@form(UPDATES, lambda: base_optimizer, "clip_by_global_norm")
def _clipped_at_once(original: Callable[..., Any]) -> Callable[..., Any]:
    def clip(value_list: Sequence[Any], clip_norm: Any) -> list[Any]:
        if any(not isinstance(value, torch.Tensor) or value.dtype != torch.float32 for value in value_list):
            return original(value_list, clip_norm)
        norm = torch.linalg.vector_norm(torch.stack(torch._foreach_norm(list(value_list))))
        scale = clip_norm * torch.clamp(1.0 / norm, max=1.0 / clip_norm) + (norm - norm)
        return list(torch._foreach_mul(list(value_list), scale))

    return clip


@form(UPDATES, lambda: base_optimizer.BaseOptimizer, "_update_model_variables_moving_average")
def _averaged_at_once(original: Callable[..., Any]) -> Callable[..., Any]:
    def average(self: Any, trainable_variables: Sequence[Any]) -> Any:
        averages = self._model_variables_moving_average if self.use_ema else []
        pairs = [(one, mean) for one, mean in zip(trainable_variables, averages, strict=False) if mean is not None]
        if not pairs or any(one.dtype != "float32" for pair in pairs for one in pair):
            return original(self, trainable_variables)
        kept = ops.cast(ops.not_equal(self.iterations, 0), "float32") * self.ema_momentum
        with torch.no_grad():
            means = [mean.value for _, mean in pairs]
            torch._foreach_mul_(means, kept)
            torch._foreach_add_(means, torch._foreach_mul([one.value for one, _ in pairs], 1 - kept))
        return None

    return average
