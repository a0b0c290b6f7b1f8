"""The PyTorch engine: the Keras variables are the state, and steps run one by one, recorded by autograd."""

import contextlib
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import keras
import keras.src.backend.torch.random as keras_random
import numpy as np
import torch
from keras.src.backend.torch.core import get_device
from torch.overrides import TorchFunctionMode
from torch.utils.flop_counter import FlopCounterMode

from everstep.data import nest
from everstep.data.sparse import SparseArray
from everstep.engine.call_length import CallLength
from everstep.engine.engine import Engine
from everstep.engine.explain import decided_in_python
from everstep.engine.feed import Piece, on_host
from everstep.engine.logs import floats
from everstep.engine.probe import replaced, watch_sparse_labels
from everstep.errors import UsageError
from everstep.task.task import unpack
from everstep.types import Batch, Logs


class TorchEngine(Engine):
    """Runs steps on PyTorch."""

    is_eager = True

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.call_length = CallLength(lengths=None)  # nothing is compiled, so a call may have any length

    def describe(self) -> dict[str, Any]:
        """Returns how steps are run, for the run's record."""
        device = "gpu" if _device().type == "cuda" else _device().type
        return {"device": device, "loop": "eager", "xla": False, "replicas": 1}

    # -- before the first step -------------------------------------------------------------------------------------

    def _trace(self, step: Callable[[Any], Mapping[str, Any]], batch: Batch) -> dict[str, tuple]:
        _refuse_buffers(self.model)
        # PyTorch has no tracing on shapes: the step runs on values, and its changes are undone.
        with no_global_draws(self.task), undone(), watch_sparse_labels(clip=True) as seen:
            placed = self.place(batch)
            with _NoDecisions(self.task):
                outputs = step(placed)
            labels = unpack(placed)[1]
            self._label_classes |= {labelled.classes for labelled in seen if _are_same(labelled.target, labels)}
        return {name: tuple(getattr(value, "shape", ())) for name, value in outputs.items()}

    def _compile(self) -> None:
        """Does nothing: steps run eagerly."""

    # -- running ---------------------------------------------------------------------------------------------------

    def place(self, data: Any) -> Any:
        """Places the data of a block on the device."""
        return nest.map_leaves(lambda leaf: keras.ops.convert_to_tensor(on_host(leaf)), data)

    def _sparse(self, parts: SparseArray) -> Any:
        dense = torch.zeros(tuple(parts.like.shape[1:]), dtype=parts.values.dtype, device=parts.values.device)
        return dense.index_put_(tuple(torch.as_tensor(parts.indices).long().T), parts.values, accumulate=True)

    def _train(self, piece: Piece) -> None:
        with seeded_dropout():
            for batch in _batches(piece):
                self._train_step(batch)

    def _validate(self, piece: Piece) -> dict[str, Any]:
        outputs: dict[str, Any] = {}
        with torch.no_grad(), seeded_dropout():
            for batch in _batches(piece):
                outputs = self._validation_step(batch)
        if not self.task.aggregates:
            return {}  # the device is not waited for
        return {name: (_view(keras.ops.convert_to_tensor(value)),) for name, value in outputs.items()}

    def wait(self) -> None:
        """Waits until the device has finished all steps."""
        if _device().type == "cuda":
            torch.cuda.synchronize()

    def read(self, kind: str) -> Logs:
        """Returns the logs of the open window."""
        with torch.no_grad():
            return floats({name: _view(value) for name, value in self._read(kind).items()})

    def reset(self, kind: str) -> None:
        """Opens the next window."""
        self.windows[kind].reset()

    def train_step_flops(self, batch: Batch) -> float | None:
        """Returns the operations of a training step; runs one, and undoes it."""
        return _counted(lambda: self._user_step(self.place(batch), self.windows["train"].metrics))

    def inference_step_flops(self, batch: Batch) -> float | None:
        """Returns the operations of the inference step; runs it."""
        return _counted(lambda: self.task.inference_step(self.composed(self.place(unpack(batch)[0])), self.model))

    # -- state: the Keras objects hold it ------------------------------------------------------------------------------

    def push(self) -> None:
        """Does nothing: the Keras variables are the state."""

    def pull(self) -> None:
        """Does nothing: the Keras variables are the state."""

    def _get(self, keys: Sequence[str]) -> dict[str, np.ndarray]:
        return {key: _view(self.variables[key].value) for key in keys}

    def _set(self, keys: Sequence[str], values: Mapping[str, Any]) -> None:
        for key in keys:
            self.variables[key].assign(values[key])


def _refuse_buffers(model: keras.Model) -> None:
    """Refuses PyTorch modules with buffers, which no checkpoint contains: a run could not resume.

    Raises:
      UsageError: The model has such a module; names its buffers.
    """
    for layer in model._flatten_layers():
        module = getattr(layer, "module", None)
        held = [name for name, _ in module.named_buffers()] if isinstance(module, torch.nn.Module) else []
        if held:
            raise UsageError(
                f"wraps a PyTorch module that keeps {', '.join(held[:3])} beside its weights, which no checkpoint "
                "would contain",
                key=f"layer {layer.name!r}",
                remedy="use Keras's layers instead, such as keras.layers.BatchNormalization",
            )


def _batches(piece: Piece) -> Iterator[Batch]:
    for index in range(piece.count):
        yield nest.map_leaves(lambda leaf, index=index: leaf[index], piece.placed)


def _view(tensor: torch.Tensor) -> np.ndarray:
    """Returns a view of the memory of a tensor on the host; a copy of one on a device or in bfloat16."""
    return keras.ops.convert_to_numpy(tensor) if tensor.dtype == torch.bfloat16 else tensor.detach().cpu().numpy()


def _device() -> torch.device:
    return torch.device(keras.src.backend.torch.core.get_device())


def _are_same(target: Any, labels: Any) -> bool:
    """Returns whether the labels that a loss received are those of the batch, except for type and shape."""
    if not isinstance(target, torch.Tensor) or not isinstance(labels, torch.Tensor) or target.numel() != labels.numel():
        return False
    return bool((target.detach().reshape(-1) == labels.reshape(-1)).all())


class _NoDecisions(TorchFunctionMode):
    """Refuses `if tensor:` in the code of a task: it works on no other backend. Keras and PyTorch may use it."""

    def __init__(self, task: Any) -> None:
        super().__init__()
        self._task = task

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.Tensor.__bool__:
            caller = str(sys._getframe(1).f_globals.get("__name__", "")).partition(".")[0]
            if caller not in ("keras", "torch"):
                raise decided_in_python(self._task)
        return func(*args, **(kwargs or {}))


# -- a step that is undone --------------------------------------------------------------------------------------------


def _counted(step: Callable[[], Any]) -> float | None:
    """Returns the operations of the products and convolutions of a step, which are nearly all; undoes the step."""
    with undone(), FlopCounterMode(display=False) as counter:
        step()
    return float(counter.get_total_flops()) or None


@contextlib.contextmanager
def undone() -> Iterator[None]:
    """Restores the value that each variable had before the block, or was created with in it."""
    before: dict[int, tuple[keras.Variable, torch.Tensor]] = {}
    init, value = keras.Variable.__init__, keras.Variable.value

    def keep(variable: keras.Variable) -> None:
        if id(variable) not in before and isinstance(variable._value, torch.Tensor):
            before[id(variable)] = (variable, variable._value.detach().clone())

    def keeping_init(self: keras.Variable, *args: Any, **kwargs: Any) -> None:
        init(self, *args, **kwargs)
        keep(self)

    def keeping_value(self: keras.Variable) -> Any:
        keep(self)  # every assignment reads the value first, also in Keras's optimizers
        return value.fget(self)

    with seeded_dropout(), replaced("__init__", keeping_init), replaced("value", property(keeping_value)):
        yield
    with torch.no_grad():
        for variable, kept in before.values():
            variable._value.copy_(kept)
            variable._value.grad = None


# -- random numbers ---------------------------------------------------------------------------------------------------

# As on the other backends, Keras draws from seed generators, which are part of the state. The exception is `Dropout`,
# which uses PyTorch's global generator, and no checkpoint contains that. Here that generator is seeded from the one of
# the layer for each call, and restored after it.


@contextlib.contextmanager
def seeded_dropout() -> Iterator[None]:
    """Makes `Dropout` draw from the seed generator of its layer inside the block."""
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
def no_global_draws(task: Any) -> Iterator[None]:
    """Refuses a step that draws from PyTorch's global generator, and restores the generator after the block.

    Raises:
      UsageError: The step draws from it: a resumed run would draw other numbers.
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
            "draws random numbers from PyTorch's global generator inside a step",
            key=type(task).__name__,
            remedy="keep `self.seed = keras.random.SeedGenerator(1)` in the task and use keras.random with "
            "`seed=self.seed`",
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
