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
from everstep.engine.engine import Engine
from everstep.engine.explain import decided_in_python
from everstep.engine.feed import Piece, on_host
from everstep.engine.logs import floats
from everstep.engine.pace import Pace
from everstep.engine.probe import replaced, watch_sparse_labels
from everstep.errors import UsageError
from everstep.task.task import unpack
from everstep.types import Batch, Logs


class TorchEngine(Engine):
    """Runs steps on PyTorch."""

    is_eager = True

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.pace = Pace(lengths=None)  # nothing is compiled, so a piece may have any length

    def describe(self) -> dict[str, Any]:
        """Returns how steps are run, for the run's record."""
        device = "gpu" if _device().type == "cuda" else _device().type
        return {"device": device, "loop": "eager", "xla": False, "replicas": 1}

    # -- before the first step -------------------------------------------------------------------------------------

    def _trace(self, step: Callable[[Any], Mapping[str, Any]], batch: Batch) -> dict[str, tuple]:
        _refuse_buffers(self.model)
        # There are no shapes without values here: the step is run, and what it did is undone.
        with nothing_drawn(self.task), undone(), watch_sparse_labels(clip=True) as seen:
            placed = self.place(batch)
            with _NoDecisions(self.task):
                outputs = step(placed)
            labels = unpack(placed)[1]
            self._label_classes |= {labelled.classes for labelled in seen if _are_same(labelled.target, labels)}
        return {name: tuple(getattr(value, "shape", ())) for name, value in outputs.items()}

    def _compile(self) -> None:
        """Nothing is compiled: a step costs the same the first time."""

    # -- running ---------------------------------------------------------------------------------------------------

    def place(self, data: Any) -> Any:
        """Puts a block's data on the device."""
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
        return {name: (_view(keras.ops.convert_to_tensor(value)),) for name, value in outputs.items()}

    def wait(self) -> None:
        """Waits until the steps handed to the device are done."""
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
        """Shows the state to the Keras objects; they are it."""

    def pull(self) -> None:
        """Takes the state from the Keras objects; they are it."""

    def _get(self, keys: Sequence[str]) -> dict[str, np.ndarray]:
        return {key: _view(self.variables[key].value) for key in keys}

    def _set(self, keys: Sequence[str], values: Mapping[str, Any]) -> None:
        for key in keys:
            self.variables[key].assign(values[key])


def _refuse_buffers(model: keras.Model) -> None:
    """Refuses what PyTorch's own modules keep beside their weights: no checkpoint has it, so a run could not resume.

    Raises:
      UsageError: There is such a module in the model; names what it keeps.
    """
    for layer in model._flatten_layers():
        module = getattr(layer, "module", None)
        held = [name for name, _ in module.named_buffers()] if isinstance(module, torch.nn.Module) else []
        if held:
            raise UsageError(
                f"wraps a module of PyTorch that keeps {', '.join(held[:3])} beside its weights, which no checkpoint "
                "would have",
                key=f"layer {layer.name!r}",
                remedy="use Keras's layers for it, such as keras.layers.BatchNormalization",
            )


def _batches(piece: Piece) -> Iterator[Batch]:
    for index in range(piece.count):
        yield nest.map_leaves(lambda leaf, index=index: leaf[index], piece.placed)


def _view(tensor: torch.Tensor) -> np.ndarray:
    """Returns a tensor's memory, not copied where it is on the host and NumPy knows its type."""
    return keras.ops.convert_to_numpy(tensor) if tensor.dtype == torch.bfloat16 else tensor.detach().cpu().numpy()


def _device() -> torch.device:
    return torch.device(keras.src.backend.torch.core.get_device())


def _are_same(target: Any, labels: Any) -> bool:
    """Returns whether a loss was given a batch's labels, unchanged but for type and shape."""
    if not isinstance(target, torch.Tensor) or not isinstance(labels, torch.Tensor) or target.numel() != labels.numel():
        return False
    return bool((target.detach().reshape(-1) == labels.reshape(-1)).all())


class _NoDecisions(TorchFunctionMode):
    """Refuses `if tensor:` in a task: here it would work, but on no other backend. Keras and PyTorch may."""

    def __init__(self, task: Any) -> None:
        super().__init__()
        self._task = task

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.Tensor.__bool__ and _package(sys._getframe(1)) not in ("keras", "torch"):
            raise decided_in_python(self._task)
        return func(*args, **(kwargs or {}))


def _package(frame: Any) -> str:
    return str(frame.f_globals.get("__name__", "")).partition(".")[0]


# -- a step that is undone --------------------------------------------------------------------------------------------


def _counted(step: Callable[[], Any]) -> float | None:
    """Returns the operations of products and convolutions in a step, which are nearly all; the step is undone."""
    with undone(), FlopCounterMode(display=False) as counter:
        step()
    return float(counter.get_total_flops()) or None


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
        keep(self)  # every change of a variable reads its value first, in Keras's optimizers too
        return value.fget(self)

    with seeded_dropout(), replaced("__init__", keeping_init), replaced("value", property(keeping_value)):
        yield
    with torch.no_grad():
        for variable, kept in before.values():
            variable._value.copy_(kept)
            variable._value.grad = None


# -- random numbers ---------------------------------------------------------------------------------------------------

# Keras draws from seed generators, which are part of the state, as on the other backends, but for `Dropout`: its layers
# use PyTorch's global generator, which no checkpoint holds. Here they are seeded from the layer's own generator, and
# the global one is left as it was.


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
      UsageError: It does: a resumed run would draw other numbers.
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
            "draws numbers from PyTorch's global generator inside a step",
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
