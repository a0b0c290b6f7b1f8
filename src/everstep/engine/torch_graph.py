"""Steps on PyTorch as graphs: recorded once, then replayed without Python, with the bits of the eager step.

Eagerly, a small Keras step is bound by Python: hundreds of short kernels, each launched by many lines of code. A CUDA
graph is the list of those kernels with their addresses; a replay launches all of them at once. So everything that a
step reads and writes has to stay where it is, and nothing may depend on Python at run time:

- Keras's variables are updated in place. The batch is copied to the memory that the graph was recorded with.
- Numbers that come from Python (`0.9` in Adam) are copied to the device once, before the graph is recorded.
- Random numbers are drawn from one `torch.Generator` per draw. Keras's seed generators are counters, so the seed of
  each draw is known on the host, and is set before each replay (`_Seeds`).
- A step that needs a value on the host, such as `if loss > 3`, cannot be recorded, nor one that changes attributes of
  its objects. It runs eagerly.

`Recorder.record` does all that: it runs the step eagerly twice, rehearses it twice, records it, replays it twice, and
accepts the graph only if all bits are those of the eager steps. Then it restores all variables. What depends on CUDA is
in `CudaGraph`.
"""

import contextlib
import functools
import gc
import sys
import traceback
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol

import keras
import torch
from torch.overrides import TorchFunctionMode

from everstep.data import nest
from everstep.errors import plain_text
from everstep.keras_internals import get_device
from everstep.keras_internals import torch_core as keras_core
from everstep.keras_internals import torch_random as keras_random

_MASK = 0xFFFFFFFF  # Keras's seeds are 32-bit numbers
STEPS = 2  # are compared: a counter in Python, or a wrong seed, has an effect in the second step at the latest


class CannotRecord(Exception):
    """The step cannot be replayed as a graph; the message says why."""


class Graph(Protocol):
    """Operations that were recorded once and can be replayed."""

    def run(self, step: Callable[[], Any]) -> Any:
        """Runs a step eagerly; returns its outputs."""

    def rehearse(self, step: Callable[[], Any]) -> None:
        """Runs a step eagerly, as it will be recorded; raises if it waits for the device."""

    def record(self, step: Callable[[], Any], generators: Sequence[torch.Generator]) -> Any:
        """Records the operations of a step, which draws from these generators; returns its outputs."""

    def drawing_from(self, generator: torch.Generator) -> contextlib.AbstractContextManager[None]:
        """Makes operations that use the global generator draw from this one inside the block."""

    def replay(self) -> None:
        """Runs the recorded operations; the outputs have new values afterwards."""


class CudaGraph:
    """A CUDA graph; all graphs of a process are recorded on one stream and share their memory.

    They may share it because they run one after the other, and outputs are read before the next replay.
    """

    _stream: Any = None
    _pool: Any = None
    _kept: list[Any] = []  # graphs that hold a pool, and those whose recording has failed, which may still be used

    def __init__(self) -> None:
        if CudaGraph._pool is None:
            self._open_pool()
        self._graph = torch.cuda.CUDAGraph()
        gc.collect()  # of earlier uses of the variables; see `run`

    @classmethod
    def _open_pool(cls) -> None:
        """Opens the memory of all graphs; an empty graph holds it, since PyTorch closes it with the last one."""
        cls._stream, cls._pool = cls._stream or torch.cuda.Stream(), torch.cuda.graph_pool_handle()
        empty = torch.cuda.CUDAGraph()
        with torch.cuda.graph(empty, pool=cls._pool, stream=cls._stream, capture_error_mode="thread_local"):
            torch.zeros(1, device=get_device())
        cls._kept.append(empty)

    def run(self, step: Callable[[], Any]) -> Any:
        """Runs a step eagerly on the stream on which it will be recorded.

        Autograd adds a gradient to a variable on the stream where the variable was first used, and as long as anything
        refers to that use. A use on another stream could not be recorded.
        """
        with self._on_stream():
            return step()

    def rehearse(self, step: Callable[[], Any]) -> None:
        """Runs a step on the stream on which it will be recorded; raises if it waits for the device."""
        with self._on_stream(), _waiting_refused():
            step()

    def record(self, step: Callable[[], Any], generators: Sequence[torch.Generator]) -> Any:
        """Records the operations of a step, which draws from these generators; returns its outputs."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # new versions of PyTorch register them by themselves
            for generator in generators:
                self._graph.register_generator_state(generator)
        torch.cuda.synchronize()
        torch.cuda.empty_cache()
        with self._on_stream(), _spare_default_generator(), _no_garbage_collection():
            # Other threads may use the device meanwhile, so only the calls of this one are checked.
            try:
                self._graph.capture_begin(pool=CudaGraph._pool, capture_error_mode="thread_local")
                outputs = step()
                self._graph.capture_end()
            except BaseException:
                self._abandon()
                raise
        return outputs

    def drawing_from(self, generator: torch.Generator) -> contextlib.AbstractContextManager[None]:
        """Makes operations that use the global generator draw from this one inside the block."""
        return _default_generator_as(generator.graphsafe_get_state())

    def replay(self) -> None:
        """Launches all recorded operations on the current stream."""
        self._graph.replay()

    def _abandon(self) -> None:
        """Ends a recording that has failed, so that the device can be used as before."""
        CudaGraph._kept.append(self._graph)
        with contextlib.suppress(Exception):
            self._graph.capture_end()
        with contextlib.suppress(Exception):
            torch._C._cuda_endAllocateToPool(torch.cuda.current_device(), CudaGraph._pool)
        CudaGraph._pool = None

    @contextlib.contextmanager
    def _on_stream(self) -> Iterator[None]:
        stream, outer = CudaGraph._stream, torch.cuda.current_stream()
        stream.wait_stream(outer)
        try:
            with torch.cuda.stream(stream):
                yield
        finally:
            outer.wait_stream(stream)


@contextlib.contextmanager
def _waiting_refused() -> Iterator[None]:
    """Raises an error where an operation inside the block makes the host wait for the device."""
    before = torch.cuda.get_sync_debug_mode()
    _set_sync_debug_mode("error")
    try:
        yield
    finally:
        _set_sync_debug_mode(before)


@contextlib.contextmanager
def _waiting_allowed() -> Iterator[None]:
    if not torch.cuda.is_initialized():
        yield
        return
    before = torch.cuda.get_sync_debug_mode()
    _set_sync_debug_mode("default")
    try:
        yield
    finally:
        _set_sync_debug_mode(before)


def _set_sync_debug_mode(mode: int | str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it says that not every wait is found; the rest fails while recording
        torch.cuda.set_sync_debug_mode(mode)


@contextlib.contextmanager
def _default_generator_as(state: torch.Generator) -> Iterator[None]:
    default = torch.cuda.default_generators[torch.cuda.current_device()]
    before = default.graphsafe_get_state()
    default.graphsafe_set_state(state)
    try:
        yield
    finally:
        default.graphsafe_set_state(before)


def _spare_default_generator() -> contextlib.AbstractContextManager[None]:
    """Records with a copy of the global generator: after a recording that fails, the generator used is broken."""
    return _default_generator_as(torch.cuda.default_generators[torch.cuda.current_device()].clone_state())


@contextlib.contextmanager
def _no_garbage_collection() -> Iterator[None]:
    """Frees no memory of the device in the middle of a recording."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


# -- recording --------------------------------------------------------------------------------------------------------


class Recorder:
    """Records steps over the same variables.

    Args:
      variables: All variables that the steps read or write.
      objects: Returns the objects whose attributes a step must not change: the task, the layers, the optimizer.
      make_graph: Creates an empty graph, such as `CudaGraph`.
    """

    def __init__(
        self, variables: Sequence[keras.Variable], objects: Callable[[], list[Any]], make_graph: Callable[[], Graph]
    ) -> None:
        self._variables = list(variables)
        self._objects = objects
        self._make_graph = make_graph
        self._seeds = _Seeds(variables)
        self._addresses = self._current_addresses()

    @property
    def is_current(self) -> bool:
        """Whether all variables are still where they were; else what was recorded must not be replayed."""
        return self._current_addresses() == self._addresses

    def renewed(self) -> "Recorder":
        """Returns a recorder for the same variables where they are now."""
        return Recorder(self._variables, self._objects, self._make_graph)

    def record(self, step: Callable[[Any], Any], batch: Any) -> "Recorded":
        """Records a step on a batch on the device; leaves all variables as they were.

        Args:
          step: Called with a batch; returns a nesting of tensors, or None.
          batch: A nesting of tensors, which is copied; None for a step without a batch.

        Raises:
          CannotRecord: The step cannot be recorded, or a replay gives other bits.
        """
        inputs = nest.map_leaves(torch.clone, batch)
        values, objects = [variable._value for variable in self._variables], self._objects()
        before, attributes = [value.detach().clone() for value in values], _attributes(objects)
        graph = self._make_graph()
        watch = _Watch(self._variables, self._seeds, graph)

        def run() -> Any:
            return step(inputs)

        try:
            for _ in range(STEPS):
                outputs = graph.run(run)  # an error of the step itself is not caught
            expected = [tensor.detach().clone() for tensor in [*values, *nest.flatten(outputs)]]
            _restore(values, before)
            with _as_reason(watch):
                constants, lengths = watch.rehearse(run), _lengths(objects)
                if not _same_bits(watch.rehearse(run), constants):
                    raise CannotRecord("a number that the step takes from Python differs from step to step")
                _refuse_changes(objects, attributes, _attributes(objects))
                _refuse_changes(objects, lengths, _lengths(objects))
                _restore(values, before)
                recorded = watch.record(run, inputs)
                _restore(values, before)
                for _ in range(STEPS):
                    outputs = recorded(inputs)
                if not _same_bits([*values, *nest.flatten(outputs)], expected):
                    raise CannotRecord("a replay gives other results than the step itself")
            return recorded
        except torch.OutOfMemoryError as error:
            raise CannotRecord("the device has too little memory to compare the recorded step") from error
        finally:
            _restore(values, before)
            for (position, name), value in attributes.items():
                vars(objects[position])[name] = value

    def _current_addresses(self) -> list[int]:
        return [variable._value.data_ptr() for variable in self._variables]


def _attributes(objects: Sequence[Any]) -> dict[tuple[int, str], Any]:
    """Returns the attributes that are plain values, by the position of their object and their name."""
    found = {(position, name): value for position, owner in enumerate(objects) for name, value in vars(owner).items()}
    return {key: value for key, value in found.items() if value is None or isinstance(value, bool | int | float | str)}


def _lengths(objects: Sequence[Any]) -> dict[tuple[int, str], int]:
    """Returns the lengths of the attributes that are lists, dicts or sets."""
    found = {(position, name): value for position, owner in enumerate(objects) for name, value in vars(owner).items()}
    return {key: len(value) for key, value in found.items() if isinstance(value, list | dict | set)}


def _refuse_changes(objects: Sequence[Any], before: dict[tuple[int, str], Any], after: dict) -> None:
    """Refuses a step that has changed attributes: a replay would not."""
    for (position, name), value in after.items():
        if (position, name) not in before or before[position, name] != value:
            raise CannotRecord(f"the step changes the attribute {name!r} of {type(objects[position]).__name__}")


@contextlib.contextmanager
def _as_reason(watch: "_Watch") -> Iterator[None]:
    """Raises every error as `CannotRecord`, with what was refused first: the rest may follow from it."""
    try:
        yield
    except Exception as error:
        own = str(error) if isinstance(error, CannotRecord) else _first_line(error)
        raise CannotRecord(watch.reason or own) from error


def _restore(values: Sequence[torch.Tensor], before: Sequence[torch.Tensor]) -> None:
    with torch.no_grad():
        for value, kept in zip(values, before, strict=True):
            value.copy_(kept)
            value.grad = None


def _same_bits(some: Sequence[torch.Tensor], others: Sequence[torch.Tensor]) -> bool:
    """Whether two lists hold the same tensors, bit by bit: NaN is equal to itself."""
    return len(some) == len(others) and all(
        (one.shape, one.dtype) == (other.shape, other.dtype) and torch.equal(_bits(one), _bits(other))
        for one, other in zip(some, others, strict=True)
    )


def _bits(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.detach().contiguous().reshape(-1).view(torch.uint8)


def _first_line(error: Exception) -> str:
    """Returns an error in one line, with the line of code that raised it."""
    *_, (frame, line) = traceback.walk_tb(error.__traceback__)
    text = plain_text(Exception(str(error).strip().partition("\n")[0])) or "no message"
    return f"{type(error).__name__}: {text}, in {frame.f_globals.get('__name__')}, line {line}"


class Recorded:
    """A recorded step; call it with a batch of the shape that it was recorded with.

    The outputs are overwritten by the next call of any recorded step.
    """

    def __init__(self, graph: Graph, inputs: Any, outputs: Any, draws: Sequence["_Draw"], seeds: "_Seeds") -> None:
        self._graph, self._outputs, self._draws, self._seeds = graph, outputs, draws, seeds
        self._inputs = nest.flatten(inputs)
        self._constants: list[torch.Tensor] = []

    def keep(self, constants: Sequence[torch.Tensor]) -> None:
        """Keeps the tensors alive whose addresses were recorded."""
        self._constants = list(constants)

    def __call__(self, batch: Any = None) -> Any:
        """Runs the step on a batch; returns its outputs."""
        for kept, new in zip(self._inputs, nest.flatten(batch), strict=True):
            if kept is not new:
                kept.copy_(new)
        self._seeds.set(self._draws)
        self._graph.replay()
        self._seeds.advance(self._draws)
        return self._outputs


# -- random numbers ---------------------------------------------------------------------------------------------------


class _Draw:
    """One draw of random numbers in a step.

    Attributes:
      generator: The generator that its numbers come from.
      state: The variable of the seed generator whose next seed it uses; None for a constant seed.
      offset: What is added to the state's seed: the draws before it in the step, or the constant seed.
    """

    def __init__(self, state: keras.Variable | None, offset: int) -> None:
        self.generator = torch.Generator(device=get_device())
        self.state, self.offset = state, offset


class _Seeds:
    """The states of all seed generators, on the host: `[seed, counter]`, of which Keras uses the sum.

    A replay advances the states on the device, and they are advanced here, too. They are read from the device only
    after something else has assigned them, which PyTorch counts in the version of a tensor.

    Args:
      variables: Variables, those of seed generators among them.
    """

    def __init__(self, variables: Sequence[keras.Variable]) -> None:
        self._states = [variable for variable in variables if variable.name == "seed_generator_state"]
        self._sums: dict[int, tuple[int, int]] = {}  # by the variable: the version, and the sum

    def read(self) -> dict[int, int]:
        """Returns the current sum of each state, by the id of its variable."""
        return {id(state): self._sum(state) for state in self._states}

    def set(self, draws: Sequence[_Draw]) -> None:
        """Seeds the generators of the next step."""
        for draw in draws:
            begin = 0 if draw.state is None else self._sum(draw.state)
            draw.generator.manual_seed((begin + draw.offset) & _MASK)

    def advance(self, draws: Sequence[_Draw]) -> None:
        """Counts the draws of a step that was replayed."""
        for draw in draws:
            if draw.state is not None:
                version, total = self._sums[id(draw.state)]
                self._sums[id(draw.state)] = version, total + 1

    def _sum(self, state: keras.Variable) -> int:
        version, total = self._sums.get(id(state), (-1, 0))
        if version != state._value._version:
            version, total = state._value._version, int(state._value.sum())
            self._sums[id(state)] = version, total
        return total


# -- operations of Keras's optimizers that take a number from the host ------------------------------------------------


@functools.cache
def _fused_multiply_add() -> Callable[..., torch.Tensor]:
    """Returns the operation of `torch._foreach_add_`, which rounds once, with the factor on the device."""
    code = "template <typename T> T add_scaled(T target, T other, T factor) { return target + factor * other; }"
    function: Callable[..., torch.Tensor] = torch.cuda.jiterator._create_jit_fn(code)
    return function


def _add_scaled(targets: Sequence[torch.Tensor], others: Sequence[torch.Tensor], factor: torch.Tensor) -> None:
    """Adds tensors times a factor to others in place, as SGD and Adadelta do with the learning rate."""
    for target, other in zip(targets, others, strict=True):
        target.copy_(_fused_multiply_add()(target, other, factor.to(target.dtype)))


# -- what Python contributes to a step --------------------------------------------------------------------------------

_TENSOR = torch.Tensor
_CREATES = (torch.tensor, torch.as_tensor, torch.asarray)
_READS = {
    getattr(_TENSOR, name): name
    for name in ("__bool__", "__int__", "__float__", "__index__", "__array__", "__repr__", "__format__")
    + ("item", "tolist", "numpy", "cpu")
}


def _caller() -> str:
    """Returns the module and the line that called the operation which is being handled."""
    frame = sys._getframe(2)
    return f"{frame.f_globals.get('__name__')}, line {frame.f_lineno}"


class _Watch(TorchFunctionMode):
    """Rehearses and records a step: supplies what comes from Python, and refuses what a replay could not repeat."""

    def __init__(self, variables: Sequence[keras.Variable], seeds: _Seeds, graph: Graph) -> None:
        super().__init__()
        self._variables, self._seeds, self._graph = variables, seeds, graph
        self._device = torch.device(get_device()).type
        self._constants: list[torch.Tensor] = []  # in the order in which the step creates them
        self._draws: list[_Draw] = []
        self._begin: dict[int, int] = {}  # the sums of the seeds before the step
        self._used, self._drawn = 0, 0  # constants and draws of the current run of the step
        self._recording = False
        self.reason = ""  # why the step cannot be recorded; Keras may catch the exception that says it

    def rehearse(self, step: Callable[[], Any]) -> list[torch.Tensor]:
        """Runs the step eagerly; returns the constants that it took from Python."""
        self._constants, self._draws, self._begin = [], [], self._seeds.read()
        with self._watching():
            self._graph.rehearse(step)
        self._raise_reason()
        return self._constants

    def record(self, step: Callable[[], Any], inputs: Any) -> Recorded:
        """Records the step; its constants and draws are those of the last rehearsal."""
        versions = [constant._version for constant in self._constants]
        self._recording = True
        with self._watching():
            outputs = self._graph.record(step, [draw.generator for draw in self._draws])
        self._raise_reason()
        if (self._used, self._drawn) != (len(self._constants), len(self._draws)):
            raise CannotRecord("the step does something else each time")
        if versions != [constant._version for constant in self._constants]:
            raise CannotRecord("the step changes a tensor in place that it has created from Python numbers")
        recorded = Recorded(
            self._graph, inputs, nest.map_leaves(torch.Tensor.detach, outputs), self._draws, self._seeds
        )
        recorded.keep(self._constants)
        return recorded

    def _raise_reason(self) -> None:
        if self.reason:
            raise CannotRecord(self.reason)

    def _refuse(self, reason: str) -> CannotRecord:
        self.reason = self.reason or reason
        return CannotRecord(reason)

    @contextlib.contextmanager
    def _watching(self) -> Iterator[None]:
        self._used = self._drawn = 0
        former = keras_random.torch_seed_generator, keras_random.dropout, keras_core.cond
        keras_random.torch_seed_generator, keras_random.dropout = self._seed_generator, self._dropout(former[1])
        keras_core.cond = self._cond(former[2])
        try:
            with self:
                yield
        finally:
            keras_random.torch_seed_generator, keras_random.dropout, keras_core.cond = former

    # -- constants and values on the host

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func in _READS and self._is_here(args[0]):
            raise self._refuse(f"the step needs a value on the host: Tensor.{_READS[func]} in {_caller()}")
        filled = kwargs.get("fill_value", (*args, None, None)[1])
        if func is torch.full and self._is_here(filled):  # it would be read on the host
            rest = {name: value for name, value in kwargs.items() if name not in ("size", "fill_value")}
            size = kwargs["size"] if "size" in kwargs else args[0]
            return torch.empty(size, **{"dtype": filled.dtype, **rest}).copy_(filled)
        if self._is_here(factor := kwargs.get("alpha")):  # the same
            if func is not torch._foreach_add_ or self._device != "cuda":
                raise self._refuse(f"the step needs a value on the host: torch.{func.__name__} in {_caller()}")
            return _add_scaled(args[0], args[1], factor)
        if func in _CREATES:
            return self._constant(func, args, kwargs, args[0] if args else kwargs.get("data"))
        if func in (_TENSOR.to, _TENSOR.cuda) and not self._is_here(args[0]):
            return self._constant(func, args, kwargs, args[0])
        result = func(*args, **kwargs)
        if func is _TENSOR.to and self._is_here(args[0]) and not self._is_here(result):
            raise self._refuse(f"the step needs a value on the host: Tensor.to in {_caller()}")
        return result

    def _is_here(self, value: Any) -> bool:
        return isinstance(value, _TENSOR) and value.device.type == self._device

    def _constant(self, func: Any, args: Any, kwargs: Any, data: Any) -> Any:
        """Returns a tensor that is made from Python numbers, or from one on the host; copied to the device once."""
        if self._is_here(data) or kwargs.get("requires_grad") or self._stays_on_host(func, args, kwargs):
            return func(*args, **kwargs)
        if not self._recording:
            with _waiting_allowed():
                self._constants.append(func(*args, **kwargs))
        elif self._used >= len(self._constants):
            raise self._refuse("the step does something else each time")
        self._used += 1
        return self._constants[self._used - 1]

    def _stays_on_host(self, func: Any, args: Any, kwargs: Any) -> bool:
        """Whether a new tensor is one of the host, such as `torch.tensor(3)` without a device."""
        named = [value for value in (*args[1:], *kwargs.values()) if isinstance(value, str | torch.device)]
        devices = [torch.device(name).type for name in named]
        default = "cuda" if func is _TENSOR.cuda else torch.get_default_device().type
        return (devices[0] if devices else default) != self._device

    # -- random numbers

    def _seed_generator(self, seed: Any) -> torch.Generator | None:
        """Replaces Keras's `torch_seed_generator`, which reads the seed from the device."""
        return None if get_device() == "meta" else self._draw(seed).generator

    def _dropout(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """Returns `Dropout`'s operation with the bits of the eager one."""

        def dropout(inputs: Any, rate: float, noise_shape: Any = None, seed: Any = None) -> Any:
            if noise_shape is not None or get_device() == "meta":
                return original(inputs, rate, noise_shape, seed)
            with self._graph.drawing_from(self._draw(seed).generator):
                return torch.nn.functional.dropout(inputs, p=rate, training=True)

        return dropout

    def _draw(self, seed: Any) -> _Draw:
        keras_random.draw_seed(seed)  # advances the state on the device
        state, offset = getattr(seed, "state", None), 0
        if state is None and not isinstance(seed, int):
            raise self._refuse("the step draws random numbers without a seed")
        if state is not None and id(state) not in self._begin:
            raise self._refuse("the step draws random numbers from a seed generator that no object holds")
        if self._recording:
            if self._drawn >= len(self._draws) or self._draws[self._drawn].state is not state:
                raise self._refuse("the step does something else each time")
        else:
            offset = seed if state is None else sum(draw.state is state for draw in self._draws)
            self._draws.append(_Draw(state, offset))
            begin = 0 if state is None else self._begin[id(state)]
            self._draws[-1].generator.manual_seed((begin + offset) & _MASK)
        self._drawn += 1
        return self._draws[self._drawn - 1]

    # -- conditions

    def _cond(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """Returns `ops.cond` that computes both branches and selects; branches must have no other effect."""

        def cond(pred: Any, true_fn: Callable[[], Any], false_fn: Callable[[], Any]) -> Any:
            if not self._is_here(pred):
                return original(pred, true_fn, false_fn)
            before = [variable._value._version for variable in self._variables]
            one, other = true_fn(), false_fn()
            if before != [variable._value._version for variable in self._variables]:
                raise self._refuse("the step assigns variables under a condition (keras.ops.cond)")
            return nest.map_leaves(lambda a, b: self._select(pred, a, b), one, other)

        return cond

    def _select(self, pred: torch.Tensor, one: Any, other: Any) -> Any:
        one, other = (keras_core.convert_to_tensor(value) for value in (one, other))
        if one.dtype != other.dtype or one.shape != other.shape:
            raise self._refuse("the branches of a condition have different types or shapes")
        if one.requires_grad or other.requires_grad:
            raise self._refuse("the step differentiates through a condition (keras.ops.cond)")
        return torch.where(pred, one, other)
