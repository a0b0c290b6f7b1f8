"""The backend for PyTorch: the Keras variables are the state, and steps run one by one, recorded by autograd.

On a CUDA device each step is recorded once as a graph and replayed (`torch_graph.py`), with the same bits as eagerly. A
step that cannot be recorded, and every step on another device, runs eagerly. That choice follows from the model and the
device, not from a timing; it is logged, and recorded with the run (`describe`).
"""

import contextlib
import functools
import logging
import re
import sys
import threading
import warnings
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import keras
import numpy as np
import torch
from torch.overrides import TorchFunctionMode
from torch.utils.flop_counter import FlopCounterMode

from everstep.data import Block, RaggedArray, SparseArray, nest
from everstep.engine import exactness
from everstep.engine import state as states
from everstep.engine.batch_dtypes import on_host
from everstep.engine.device_data import PlacedRows
from everstep.engine.explanations import decided_in_python
from everstep.engine.feed import Piece
from everstep.engine.logs import floats
from everstep.engine.probe import watch_sparse_labels
from everstep.engine.processes import SharedSteps
from everstep.engine.protocol import Backend, EngineOptions, Traced
from everstep.engine.replaced import current, replaced, replaced_in_all_threads
from everstep.engine.steps import Steps
from everstep.engine.torch_forms import forms
from everstep.engine.torch_graph import CannotRecord, CudaGraph, Graph, Recorded, Recorder
from everstep.engine.torch_processes import joined
from everstep.engine.window import WindowSums
from everstep.errors import UsageError, plain_text, warning_text
from everstep.keras_internals import get_device
from everstep.keras_internals import torch_random as keras_random
from everstep.task import unpack
from everstep.types import Batch, Logs, OwnState

logger = logging.getLogger(__name__)

IN_FLIGHT = 2  # calls that were dispatched to the device and not yet awaited
SHAPES = 8  # of batches for which a step is recorded; batches of further shapes run eagerly
ALIGNMENT = 256  # bytes; the libraries of a GPU select other kernels, with other bits, for other addresses

CHECKSUM_NUMBERS = 1 << 24  # of a variable that are added at once

Key = tuple[Any, ...]


class TorchSums(WindowSums):
    """The sums of a window, added without Keras's operations, each of which is many calls of Python."""

    def add(self, logs: Mapping[str, Any], size: int) -> None:
        """Adds the logs of one step over `size` samples, with the bits of `WindowSums.add`."""
        if self.reduction == "last":
            super().add(logs, size)
            return
        with torch.no_grad():
            for name, total in self.totals.items():
                total._value.add_(_number(logs[name], total) * float(size))
            self.samples._value.add_(float(size))
            if self.norms is not None:
                self.norms.add(float(size))
            if self.finite_steps is not None:
                count, loss = self.finite_steps.count._value, _number(logs[self.finite_steps.name], self.samples)
                count.copy_(torch.where(count < 0.0, count, torch.where(loss.isfinite(), count + 1.0, -(count + 1.0))))


_DTYPES = {"bool", "uint8", "int8", "int16", "int32", "int64", "float16", "float32"}
"""The dtypes of arrays that PyTorch uses as they are; Keras converts others."""


def _number(value: Any, like: keras.Variable) -> torch.Tensor:
    """Returns a log as float32."""
    return torch.as_tensor(value, dtype=torch.float32, device=like._value.device)


class TorchBackend(Backend):
    """Runs steps on PyTorch."""

    sums = TorchSums

    def __init__(self, options: EngineOptions | None = None) -> None:
        super().__init__(options)
        self.loop_lengths = "any" if _device().type == "cuda" else "eager"  # no length is compiled
        if (processes := joined()) is not None:
            self.workers = SharedSteps(processes)
        self._on_cuda = self.reads_copies = _device().type == "cuda"
        self._recorder: Recorder | None = None
        self._recorded_steps: dict[Key, Recorded | None] = {}  # by kind, shapes and types; None if run eagerly
        self._main_kind = "train"  # of the steps that `describe` tells about
        self._reasons: dict[str, str] = {}  # why the steps of a kind run eagerly
        self._racing: list[str] = []  # operations of the steps that have no deterministic form
        self._log_shapes: dict[str, dict[str, tuple[int, ...]]] = {}
        self._zeros: dict[str, tuple[list[torch.Tensor], list[torch.Tensor]]] = {}
        self._pending: deque[Any] = deque()
        self._placing = threading.RLock()  # held while a block is placed, or a step recorded
        self._compute_stream = torch.cuda.current_stream() if self._on_cuda else None
        self._copy_stream = torch.cuda.Stream() if self._on_cuda else None

    def describe(self) -> dict[str, Any]:
        """Returns how steps are run, for the run's record."""
        device = "gpu" if self._on_cuda else _device().type
        why = {"reason": reason} if (reason := self._reasons.get(self._main_kind)) else {}
        return {
            "device": device,
            "loop": "eager" if self.is_eager else "cuda graph",
            **why,
            "xla": False,
            "replicas": self.workers.count,
            **({"kind": torch.cuda.get_device_name()} if self._on_cuda else {}),
        }

    @property
    def exactness(self) -> dict[str, Any]:
        """How far the bits of the steps can be repeated; see `Backend.exactness`."""
        if self._racing and self.options.deterministic is not False:
            return {"level": exactness.NONE, "reason": _no_form_of(self._racing)}
        return super().exactness

    # -- before the first step -------------------------------------------------------------------------------------

    def trace(self, steps: Steps, step: Callable[[Any], Mapping[str, Any]], batch: Batch) -> Traced:
        """Runs a step on values, and undoes it; warns of operations that race."""
        _refuse_buffers(steps.model)
        if self.options.deterministic is False:
            return self._run_and_undo(steps, step, batch)
        with _collecting, racing_operations() as racing:
            traced = self._run_and_undo(steps, step, batch)
        if new := [name for name in racing if name not in self._racing]:
            self._racing += new
            logger.warning("on this device a repeated or resumed run may end with other bits: %s", _no_form_of(new))
        return traced

    @contextlib.contextmanager
    def _deterministic_forms(self, kind: str) -> Iterator[None]:
        """Inside the block training steps take deterministic forms also where PyTorch otherwise only warns.

        PyTorch has such a form of attention, and leaves it out where operations without any are allowed. So they are
        not allowed while a step is recorded or run, unless its trace had one.
        """
        if kind != "train" or self.options.deterministic != "auto" or self._racing:
            yield
            return
        torch.use_deterministic_algorithms(True, warn_only=False)
        try:
            yield
        finally:
            torch.use_deterministic_algorithms(True, warn_only=True)

    def _run_and_undo(self, steps: Steps, step: Callable[[Any], Mapping[str, Any]], batch: Batch) -> Traced:
        # PyTorch has no tracing on shapes: the step runs on values, and its changes are undone.
        with no_global_draws(steps.task), undone(), watch_sparse_labels(clip=True) as seen:
            placed = self._placed(batch)
            # The inner mode is called first: `_NoDecisions` has to see who calls.
            decides = contextlib.nullcontext() if steps.model.run_eagerly else _NoDecisions(steps.task)
            counter = FlopCounterMode(display=False) if self._on_cuda else contextlib.nullcontext()
            with _Unchanged(unpack(placed)[1]) as labels, decides, counter:
                outputs = step(placed)
            total = float(counter.get_total_flops()) if isinstance(counter, FlopCounterMode) else 0.0
            classes = frozenset(labelled.classes for labelled in seen if labels.includes(labelled.target))
        return Traced({name: tuple(getattr(value, "shape", ())) for name, value in outputs.items()}, classes, total)

    def compile(self, steps: Steps, examples: Mapping[str, Batch]) -> None:
        """Keeps the steps, and records one on a device that allows it."""
        self._steps = steps
        self._main_kind = kind = "train" if "train" in steps.windows else "validation"
        if self.workers.processes > 1:
            for each in steps.windows if self._on_cuda and self.options.cuda_graph else ():
                self._run_eagerly(each, "several processes share them, and what they exchange is not recorded")
            return
        if (make_graph := self._graph_type()) is None:
            return
        self._recorder = Recorder(list(steps.variables.values()), self._step_objects, make_graph)
        batch = self._placed(examples[kind])
        self.is_eager = self._recorded(kind, batch) is None
        if not self.is_eager:
            text = warning_text(
                "steps are recorded as CUDA graphs and replayed",
                remedy=("{graph}=false runs them eagerly",),
                mentions={"graph": "runtime.cuda_graph"},
            )
            logger.info("%s", text)

    def _step_objects(self) -> list[Any]:
        """Returns the objects of the user that steps call."""
        steps = self._steps
        metrics = [metric for window in steps.windows.values() for metric in window.metrics]
        return [steps.task, *steps.model._flatten_layers(include_self=True), *metrics, *steps.optimizers]

    def _graph_type(self) -> Callable[[], Graph] | None:
        """Returns what records steps on the device; None where they run eagerly."""
        may_record = self._on_cuda and self.options.cuda_graph and not self._steps.model.run_eagerly
        return CudaGraph if may_record else None

    # -- recorded steps --------------------------------------------------------------------------------------------

    def _recorded(self, kind: str, batch: Batch) -> Recorded | None:
        """Returns the recorded step for batches of this shape, which is recorded first; None to run it eagerly."""
        if self._recorder is None:
            return None
        key = (kind, *((tuple(leaf.shape), leaf.dtype) for leaf in nest.flatten(batch)))
        if key not in self._recorded_steps:
            self._recorded_steps[key] = self._record(self._recorder, kind, batch) if self._may_record(kind) else None
        return self._recorded_steps[key]

    def _may_record(self, kind: str) -> bool:
        if kind in self._reasons:
            return False
        if sum(key[0] == kind for key in self._recorded_steps) < SHAPES:
            return True
        reason = f"its batches have more than {SHAPES} shapes; those after the first {SHAPES} run eagerly"
        self._run_eagerly(kind, reason)
        return False

    def _record(self, recorder: Recorder, kind: str, batch: Batch) -> Recorded | None:
        step: Callable[[Any], Any] = functools.partial(self._steps.run, kind)
        if kind.startswith("read "):
            step = lambda _: self._read_vector(kind.removeprefix("read "))  # noqa: E731
        try:
            with (
                self._placing,
                self._steps.guarded(),
                self._deterministic_forms(kind),
                own_operations(),
                torch.set_grad_enabled(kind == "train"),
            ):
                recorded = recorder.record(step, batch)
        except CannotRecord as error:
            self._run_eagerly(kind, str(error))
            return None
        self.compilations += kind in self._steps.windows
        return recorded

    def _run_eagerly(self, kind: str, reason: str) -> None:
        """Stops recording steps of a kind; the reason is logged once."""
        self._reasons[kind] = reason
        what = {"train": "training steps", "validation": "validation steps"}.get(kind, "the logs of a window")
        logger.warning("%s are not recorded as a CUDA graph and run eagerly, with the same results: %s", what, reason)

    def _forget_moved(self) -> None:
        """Drops what was recorded if a variable was replaced by another tensor since then."""
        if self._recorder is not None and not self._recorder.is_current:
            self._recorder = self._recorder.renewed()
            self._recorded_steps.clear()
            self._zeros.clear()

    # -- running ---------------------------------------------------------------------------------------------------

    def place(self, block: Block, single: bool = False) -> Any:
        """Places the rows of this process of all batches of a block; a CPU computes with the block's own memory."""
        data = self.workers.own_block(block)
        return nest.map_leaves(_without_copy, data) if _device().type == "cpu" else self._placed(data)

    def _placed(self, data: Any) -> Any:
        """Copies data to the device."""
        if not self._on_cuda:
            return nest.map_leaves(lambda leaf: keras.ops.convert_to_tensor(on_host(leaf)), data)
        # On a stream of its own, so that the copy does not wait for steps that are still running.
        with self._placing, torch.cuda.stream(self._copy_stream):
            placed = nest.map_leaves(self._copy, data)
            self._copy_stream.synchronize()  # type: ignore[union-attr]
        return placed

    def _copy(self, leaf: Any) -> torch.Tensor:
        """Copies an array to the GPU from pinned memory."""
        with keras.device("cpu"):
            host = keras.ops.convert_to_tensor(on_host(leaf))
        placed = host.pin_memory().to(_device(), non_blocking=True)
        placed.record_stream(self._compute_stream)  # not reused before the steps are done with it
        return placed

    def place_whole(self, arrays: Any) -> Any:
        """Places whole arrays on the device."""

        def placed(leaf: np.ndarray) -> torch.Tensor:
            # On a CPU, PyTorch shares the memory of an array, which must not be read-only then.
            return keras.ops.convert_to_tensor(np.require(on_host(leaf), requirements=["C", "W"]))

        return nest.map_leaves(placed, arrays)

    def assemble(self, parts: SparseArray | RaggedArray) -> Any:
        """Returns a dense tensor in place of a sparse one."""
        if isinstance(parts, RaggedArray):
            return super().assemble(parts)
        dense = torch.zeros(tuple(parts.like.shape[1:]), dtype=parts.values.dtype, device=parts.values.device)
        return dense.index_put_(tuple(torch.as_tensor(parts.indices).long().T), parts.values, accumulate=True)

    def run(self, kind: str, piece: Piece) -> list[tuple[np.ndarray, ...]]:
        """Runs the steps of a piece one by one, recorded or eagerly."""
        self._forget_moved()
        leaves: list[Any] = []
        if (step := self._recorded(kind, _batch(piece, 0))) is not None:
            for index in range(piece.count):
                leaves = step(_batch(piece, index))
        else:
            with (
                self._steps.guarded(),
                torch.no_grad() if kind == "validation" else contextlib.nullcontext(),
                self._deterministic_forms(kind),
                own_operations(),
            ):
                for index in range(piece.count):
                    leaves = self._steps.run(kind, _aligned(_batch(piece, index)))
        self._limit_pending()
        if not self._steps.returns_outputs(kind):
            return []
        return [tuple(map(self._own_view, self.workers.parts(leaf))) for leaf in leaves]

    def _own_view(self, tensor: torch.Tensor) -> np.ndarray:
        """Returns a tensor on the host; on a CPU the values are views, which the next step may overwrite."""
        return _view(tensor if tensor.is_cuda else tensor.clone())

    def _limit_pending(self) -> None:
        """Waits until few calls are left to the device, so that a signal is handled in time."""
        if self._on_cuda:
            self._pending.append(_event())
            while len(self._pending) > IN_FLIGHT:
                self._pending.popleft().synchronize()

    def wait(self) -> None:
        """Waits until the device has finished all steps."""
        self._pending.clear()
        if self._on_cuda:
            torch.cuda.synchronize()

    def read(self, kind: str) -> Callable[[], Logs]:
        """Returns a function that waits for the steps dispatched so far, and returns their logs."""
        if self._recorder is None:
            with torch.no_grad():
                logs = floats({name: _view(value) for name, value in self._steps.read(kind).items()})
            return lambda: logs
        self._forget_moved()
        step = self._recorded(f"read {kind}", None)
        with torch.no_grad():
            fetch = _fetch_later(self._read_vector(kind) if step is None else step())
        shapes = self._log_shapes[kind]
        return lambda: floats(_split(fetch(), shapes))

    def _read_vector(self, kind: str) -> torch.Tensor:
        """Returns all logs of a window in one tensor, which is copied to the host at once."""
        logs = self._steps.read(kind)
        self._log_shapes[kind] = {name: tuple(value.shape) for name, value in logs.items()}
        return torch.cat([value.detach().reshape(-1).to(torch.float64) for value in logs.values()])

    def read_finite_steps(self, count: keras.Variable) -> Callable[[], float]:
        """Returns a function that waits for the steps dispatched so far, and returns the count."""
        if self._recorder is None:
            return super().read_finite_steps(count)
        fetch = _fetch_later(count._value)
        return lambda: float(fetch())

    def reset(self, kind: str, window: WindowSums) -> None:
        """Opens the next window."""
        if self._recorder is None or kind in self._reasons:  # what runs in Python may also keep something in Python
            window.reset()
            return
        self._forget_moved()
        if kind not in self._zeros:
            window.reset()
            values = [variable._value for variable in window.variables]
            self._zeros[kind] = values, [value.detach().clone() for value in values]
        with torch.no_grad():
            for value, zero in zip(*self._zeros[kind], strict=True):
                value.copy_(zero)

    def train_step_flops(self, batch: Batch) -> float | None:
        """Returns the operations of a training step; runs one, and undoes it."""
        own = self.workers.own_batch(batch)
        counted = _counted(lambda: self._steps.logs("train", self._placed(own)))
        return counted * self.workers.processes if counted else counted

    def inference_step_flops(self, batch: Batch) -> float | None:
        """Returns the operations of the inference step; runs it."""
        return _counted(lambda: self._steps.inference(self._placed(unpack(batch)[0])))

    # -- state: the Keras objects hold it ------------------------------------------------------------------------------

    def get(self, keys: Sequence[str]) -> dict[str, np.ndarray]:
        """Returns the values of some variables."""
        return {key: _view(self._steps.variables[key].value) for key in keys}

    def copy(self, keys: Sequence[str], into: OwnState | None = None) -> OwnState:
        """Returns copies of variables; a GPU writes them into pinned memory, at ten times the speed."""
        if not self._on_cuda:
            return super().copy(keys, into)
        variables = self._steps.variables
        copies = {key: _pinned(variables[key].value.detach(), (into or {}).get(key)) for key in keys}
        torch.cuda.current_stream().synchronize()
        return copies

    def set(self, keys: Sequence[str], values: Mapping[str, Any]) -> None:
        """Replaces the values of some variables."""
        for key in keys:
            self._steps.variables[key].assign(values[key])

    def non_finite(self, keys: Sequence[str], state: OwnState | None = None) -> list[str]:
        """Returns the keys of the variables that hold NaN or an infinity; a GPU looks for them itself."""
        if not self._on_cuda:
            return super().non_finite(keys, state)
        tensors = {key: self._steps.variables[key].value.detach() for key in keys}
        found = set()
        for dtype in {tensor.dtype for tensor in tensors.values() if tensor.is_floating_point()}:
            own = {key: tensor for key, tensor in tensors.items() if tensor.dtype == dtype and tensor.numel()}
            found |= _non_finite(own)
        return [key for key in keys if key in found]

    def checksums(self, keys: Sequence[str]) -> dict[str, int]:
        """Returns checksums that the GPU computes; see `Engine.checksums`."""
        if not self._on_cuda:  # in memory of the host already
            return super().checksums(keys)
        sums = [_checksum(self._steps.variables[key].value) for key in keys]
        return dict(zip(keys, torch.stack(sums).tolist(), strict=True)) if sums else {}


def _non_finite(tensors: Mapping[str, torch.Tensor]) -> set[str]:
    """Returns the keys of the tensors of one type that hold NaN or an infinity: those whose largest number is none.

    One call looks at all of them: a launch for each would take longer than to read them.
    """
    if not tensors:
        return set()
    largest = torch.stack(torch._foreach_norm(list(tensors.values()), float("inf")))
    return {key for key, is_finite in zip(tensors, torch.isfinite(largest).tolist(), strict=True) if not is_finite}


def _checksum(value: torch.Tensor) -> torch.Tensor:
    """Returns the sum of a tensor's bits, each number multiplied by an odd one that depends on its place."""
    kind = {1: torch.uint8, 2: torch.int16, 4: torch.int32}.get(value.dtype.itemsize, torch.int64)
    total = torch.zeros((), dtype=torch.int64, device=value.device)
    for begin, part in enumerate(value.detach().reshape(-1).view(kind).split(CHECKSUM_NUMBERS)):
        place = torch.arange(len(part), device=value.device) + begin * CHECKSUM_NUMBERS
        total += (part.to(torch.int64) * (2 * place + 1)).sum()
    return total


def _refuse_buffers(model: keras.Model) -> None:
    """Refuses PyTorch modules with buffers, which no checkpoint contains: a run could not resume.

    Raises:
      UsageError: The model has such a module; names its buffers.
    """
    for layer in model._flatten_layers():
        module = getattr(layer, "module", None)
        buffers = [name for name, _ in module.named_buffers()] if isinstance(module, torch.nn.Module) else []
        if buffers:
            raise UsageError(
                f"wraps a PyTorch module that keeps {', '.join(buffers[:3])} beside its weights, which no checkpoint "
                "would contain",
                key=f"layer {layer.name!r}",
                remedy="use Keras's layers instead, such as keras.layers.BatchNormalization",
            )


def _batch(piece: Piece, index: int) -> Batch:
    placed = piece.placed
    if isinstance(placed, PlacedRows):
        return nest.map_leaves(lambda leaf: leaf.index_select(0, placed.rows[index]), placed.arrays)
    return nest.map_leaves(lambda leaf: leaf[index], placed)


def _aligned(batch: Batch) -> Batch:
    """Returns a batch whose tensors begin where those of a recorded step do: elsewhere the bits might differ."""
    return nest.map_leaves(lambda leaf: leaf.clone() if leaf.is_cuda and leaf.data_ptr() % ALIGNMENT else leaf, batch)


def _event() -> Any:
    event = torch.cuda.Event(blocking=True)
    event.record()
    return event


def _fetch_later(tensor: torch.Tensor) -> Callable[[], np.ndarray]:
    """Returns a function that returns the values as of this call; on a GPU it waits for them only then."""
    if not tensor.is_cuda:
        copy = tensor.detach().clone().numpy()
        return lambda: copy
    host = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True)
    host.copy_(tensor.detach(), non_blocking=True)
    event = _event()

    def fetch() -> np.ndarray:
        event.synchronize()
        return host.numpy()

    return fetch


def _split(vector: np.ndarray, shapes: Mapping[str, tuple[int, ...]]) -> dict[str, np.ndarray]:
    """Returns the parts of a vector by name, in their shapes."""
    ends = np.cumsum([int(np.prod(shape)) for shape in shapes.values()])
    parts = np.split(vector, ends[:-1])
    return {name: part.reshape(shape) for (name, shape), part in zip(shapes.items(), parts, strict=True)}


def _view(tensor: torch.Tensor) -> np.ndarray:
    """Returns a view of the memory of a tensor on the host; a copy of one on a device or in bfloat16."""
    return keras.ops.convert_to_numpy(tensor) if tensor.dtype == torch.bfloat16 else tensor.detach().cpu().numpy()


_FLOATS = (torch.float16, torch.float32, torch.float64)
_INTEGERS = (torch.int8, torch.int16, torch.int32, torch.int64, torch.uint8)
_STORED = {torch.bool: torch.bool, **{one: one for one in _FLOATS}, **dict.fromkeys(_INTEGERS, torch.int64)}
"""The stored form of types that PyTorch and NumPy both have."""


def _pinned(tensor: torch.Tensor, into: Any) -> np.ndarray:
    """Starts to copy a tensor of a GPU to pinned memory on the host, in the stored form; returns that memory.

    Args:
      tensor: The tensor.
      into: An array that this function has returned before; its memory is reused.
    """
    if tensor.dtype not in _STORED:  # such as bfloat16, which NumPy has not
        return states.canonical(_view(tensor))
    dtype = _STORED[tensor.dtype]
    if isinstance(into, np.ndarray) and (into.shape, into.dtype.name) == (tuple(tensor.shape), str(dtype)[6:]):
        memory = torch.from_numpy(into)
    else:
        memory = torch.empty(tensor.shape, dtype=dtype, pin_memory=True)
    memory.copy_(tensor, non_blocking=True)
    return memory.numpy()


def _without_copy(leaf: Any) -> torch.Tensor:
    """Returns a tensor in the memory of an array of ours, where PyTorch has its dtype."""
    array = on_host(leaf)
    shares = array.flags.writeable and array.dtype.name in _DTYPES
    return torch.from_numpy(array) if shares else keras.ops.convert_to_tensor(array)


def _device() -> torch.device:
    return torch.device(get_device())


class _Unchanged(TorchFunctionMode):
    """Follows a tensor through changes of type and shape inside the block, until values are written into it.

    Args:
      tensor: The tensor; anything else is followed nowhere.
    """

    _CASTS = frozenset(("bfloat16", "double", "float", "half", "int", "long", "short", "to", "type", "type_as"))
    _COPIES = frozenset(("as_tensor", "clone", "contiguous", "detach"))
    _SHAPES = frozenset(("flatten", "ravel", "reshape", "squeeze", "unsqueeze", "view", "view_as"))
    _FUNCTIONS = _CASTS | _COPIES | _SHAPES

    def __init__(self, tensor: Any) -> None:
        super().__init__()
        self._same: list[tuple[Any, int]] = []  # each with the number of writes to its memory
        if isinstance(tensor, torch.Tensor):
            self._same.append((tensor, tensor._version))

    def includes(self, tensor: Any) -> bool:
        """Returns whether this is the tensor, or was made from it by changes of type and shape only."""
        return any(tensor is one and one._version == written for one, written in self._same)

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if getattr(func, "__name__", "") in self._FUNCTIONS and args and self.includes(args[0]):
            self._same.append((result, result._version))
        return result


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


# -- operations without a deterministic form ---------------------------------------------------------------------------


_NO_FORM = re.compile(r"(\w+) does not have a deterministic implementation")
_OTHER_FORM = re.compile(r"attention defaults to a non-deterministic algorithm", re.IGNORECASE)
"""Where it would be taken, if operations without one were not allowed: in the steps themselves they are not."""

_collecting = threading.RLock()  # warnings are collected for the process, not for a thread


@contextlib.contextmanager
def racing_operations() -> Iterator[list[str]]:
    """Collects the names of the operations inside the block of which PyTorch warns that they are not deterministic.

    Raises:
      UsageError: PyTorch refuses such an operation, because deterministic ones are required.
    """
    names: list[str] = []
    try:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")  # PyTorch's warnings are shown once for a line of code
            yield names
    except RuntimeError as error:
        if (found := _NO_FORM.search(plain_text(error))) is None:
            raise
        raise UsageError(
            f"a step cannot be repeated bit for bit on this device: {_no_form_of([found.group(1)])}",
            key="runtime.deterministic",
            received=True,
            remedy="leave it out, or use another operation",
        ) from error
    for warning in caught:
        if _OTHER_FORM.search(str(warning.message)):
            continue
        if (found := _NO_FORM.search(str(warning.message))) is None:
            warnings.warn_explicit(warning.message, warning.category, warning.filename, warning.lineno)
        elif found.group(1) not in names:
            names.append(found.group(1))


def _no_form_of(names: Sequence[str]) -> str:
    return f"PyTorch has no deterministic form of {', '.join(names)}"


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
    init, value = current(keras.Variable, "__init__"), current(keras.Variable, "value")

    def keep(variable: keras.Variable) -> None:
        if id(variable) not in before and isinstance(variable._value, torch.Tensor):
            before[id(variable)] = (variable, variable._value.detach().clone())

    def keeping_init(self: keras.Variable, *args: Any, **kwargs: Any) -> None:
        init(self, *args, **kwargs)
        keep(self)

    def keeping_value(self: keras.Variable) -> Any:
        keep(self)  # every assignment reads the value first, also in Keras's optimizers
        return value.fget(self)

    with (
        own_operations(),
        replaced(keras.Variable, "__init__", keeping_init),
        replaced(keras.Variable, "value", property(keeping_value)),
    ):
        yield
    with torch.no_grad():
        for variable, value_before in before.values():
            variable._value.copy_(value_before)
            variable._value.grad = None


@contextlib.contextmanager
def own_operations() -> Iterator[None]:
    """Inside the block operations are those of a step: `Dropout` repeats its draws, and others have faster forms."""
    with seeded_dropout(), forms():
        yield


# -- random numbers ---------------------------------------------------------------------------------------------------

# As on the other backends, Keras draws from seed generators, which are part of the state. The exception is `Dropout`,
# which uses PyTorch's global generator, and no checkpoint contains that. Here that generator is seeded from the one of
# the layer for each call, and restored after it.


@contextlib.contextmanager
def seeded_dropout() -> Iterator[None]:
    """Makes `Dropout` draw from the seed generator of its layer inside the block."""
    with replaced_in_all_threads(keras_random, "dropout", _seeded_by_its_layer):  # a backward pass has further threads
        yield


def _seeded_by_its_layer(original: Callable[..., Any]) -> Callable[..., Any]:
    def dropout(inputs: Any, rate: float, noise_shape: Any = None, seed: Any = None) -> Any:
        if noise_shape is not None or get_device() == "meta":
            return original(inputs, rate, noise_shape, seed)
        with _seeded(int(keras_random.draw_seed(seed).sum()) & 0xFFFFFFFF):
            return torch.nn.functional.dropout(inputs, p=rate, training=True)

    return dropout


@contextlib.contextmanager
def no_global_draws(task: Any) -> Iterator[None]:
    """Refuses a step that draws from PyTorch's global generator, and restores the generator after the block.

    Raises:
      UsageError: The step draws from it: a resumed run would draw other numbers.
    """
    generator = _generator()
    with _generator_lock:  # not inside a dropout of another thread
        before = generator.get_state()
    try:
        yield
        with _generator_lock:
            drawn = not torch.equal(before, generator.get_state())
    finally:
        with _generator_lock:
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
    with _generator_lock:
        generator = _generator()
        before = generator.get_state()
        generator.manual_seed(seed)
        try:
            yield
        finally:
            generator.set_state(before)


_generator_lock = threading.RLock()  # held while the global generator is changed: another thread may train, too


def _generator() -> torch.Generator:
    """Returns the global generator of the device that computes."""
    device = torch.device(get_device())
    if device.type != "cuda":
        return torch.default_generator
    return torch.cuda.default_generators[device.index or torch.cuda.current_device()]
