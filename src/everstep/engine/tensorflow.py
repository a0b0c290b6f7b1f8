"""The backend for TensorFlow: the Keras variables are the state, and n steps are one loop inside a `tf.function`."""

import contextlib
import functools
import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from tensorflow.python.ops import gen_random_ops

from everstep.data import ALIGNMENT, Block, RaggedArray, SparseArray, nest
from everstep.engine import flops
from everstep.engine.batch_dtypes import on_host
from everstep.engine.device_data import PlacedRows
from everstep.engine.feed import Piece
from everstep.engine.logs import floats
from everstep.engine.probe import updates_skipped, watch_sparse_labels
from everstep.engine.processes import SharedSteps, seed_offset
from everstep.engine.protocol import Backend, EngineOptions, Traced
from everstep.engine.replaced import replaced
from everstep.engine.replicas import Replicas
from everstep.engine.steps import Steps
from everstep.engine.tensorflow_processes import joined
from everstep.engine.window import WindowSums
from everstep.engine.workers import Workers
from everstep.errors import UsageError
from everstep.task import ChainedScope, current_share, gradients_skipped, unpack
from everstep.types import Batch, Logs


class TensorFlowSums(WindowSums):
    """The sums of a window, added in half as many operations: each takes as long as a small product of matrices."""

    def add(self, logs: Mapping[str, Any], size: Any) -> None:
        """Adds the logs of one step over `size` samples, or what the task counts, as `WindowSums.add` does."""
        if self.reduction == "last" or current_share() is not None:
            super().add(logs, size)
            return
        weight = float(size) if isinstance(size, int) else size
        for name, total in self.totals.items():
            total.value.assign_add(tf.cast(logs[name], "float32") * weight)
        self.samples.value.assign_add(weight)
        if self.norms is not None:
            self.norms.add(weight)
        if self.finite_steps is not None:
            variable = self.finite_steps.count.value
            count, loss = variable.read_value(), tf.cast(logs[self.finite_steps.name], "float32")
            next_count = count + 1.0
            variable.assign(tf.where(count < 0.0, count, tf.where(tf.math.is_finite(loss), next_count, -next_count)))


class TensorFlowBackend(Backend):
    """Runs steps on TensorFlow."""

    sums = TensorFlowSums

    def __init__(self, options: EngineOptions | None = None) -> None:
        super().__init__(options)
        self.workers = _workers()
        self.is_eager = False
        self.loop_lengths = "any"  # the number of steps is an input of the compiled loop
        self._random = StepRandom()
        self._loops: dict[Any, Any] = {}
        self._readers: dict[str, Any] = {}
        self._resets: dict[str, list[tuple[Any, tf.Tensor]]] = {}

    def describe(self) -> dict[str, Any]:
        """Returns how steps are run, for the run's record."""
        device = "gpu" if _has_gpu() else "cpu"
        return {"device": device, "loop": "while", "xla": bool(self._xla), "replicas": self.workers.count}

    @property
    def _xla(self) -> bool | None:
        # On a CPU XLA is several times slower; what processes exchange it cannot compile.
        return True if self.options.enable_xla and _has_gpu() and self.workers.processes == 1 else None

    # -- compiling -------------------------------------------------------------------------------------------------

    def trace(self, steps: Steps, step: Callable[[Any], Mapping[str, Any]], batch: Batch) -> Traced:
        """Traces a step in a graph that is thrown away."""
        # A bare graph: a tf.function would trace twice, and reject variables that only the second pass creates.
        # On several replicas, gradients and updates are where they talk to each other.
        graph = tf.__internal__.FuncGraph("trace")
        skipped = (gradients_skipped(), updates_skipped(steps.optimizers)) if self.workers.count == 1 else ()
        with contextlib.ExitStack() as stack:
            for context in (summaries_refused(), graph.as_default(), self._random.drawing(), *skipped):
                stack.enter_context(context)
            seen = stack.enter_context(watch_sparse_labels())
            placed = nest.map_leaves(_placeholder, batch)
            outputs = step(placed)
        labels = unpack(placed)[1]
        classes = frozenset(labelled.classes for labelled in seen if _source(labelled.target) is labels)
        return Traced({name: _shape(value) for name, value in outputs.items()}, classes)

    def compile(self, steps: Steps, examples: Mapping[str, Batch]) -> None:
        """Keeps the steps: each loop is compiled when it is first called."""
        self._steps = steps

    def _loop(self, kind: str, data: Any) -> Any:
        """Returns the compiled loop for batches of these shapes, for any number of batches."""
        spec = _spec(data)
        rows = tuple(data.rows.shape[1:]) if isinstance(data, PlacedRows) else None
        leaves = nest.flatten(spec if rows is None else spec.arrays)
        key = (kind, (rows is None, self.workers.lengths), *(((*(rows or ()), *s.shape[1:]), s.dtype) for s in leaves))
        if key not in self._loops:
            loop = _function(lambda block: self._many(kind, block), jit_compile=self._xla)
            with self._steps.guarded(), self._random.drawing():
                self._loops[key] = loop.get_concrete_function(spec)
        return self._loops[key]

    def _many(self, kind: str, block: Any) -> None:
        self.compilations += 1
        count = tf.shape(block.rows if isinstance(block, PlacedRows) else nest.flatten(block)[0])[0]

        def one(index: tf.Tensor) -> tuple[tf.Tensor]:
            self._steps.run(kind, _batch(block, index))
            return (index + 1,)

        tf.while_loop(lambda index: index < count, one, (tf.constant(0),), parallel_iterations=1)

    # -- running ---------------------------------------------------------------------------------------------------

    def place(self, block: Block, single: bool = False) -> Any:
        """Places the rows of this process of all batches of a block."""
        return self.place_whole(self.workers.own_block(block))

    def place_whole(self, arrays: Any) -> Any:
        """Places arrays on the device."""
        return nest.map_leaves(lambda leaf: _placed(on_host(leaf)), arrays)

    def assemble(self, parts: SparseArray | RaggedArray) -> Any:
        """Returns a sparse or ragged tensor."""
        if isinstance(parts, RaggedArray):
            return tf.RaggedTensor.from_nested_row_lengths(parts.values, parts.lengths, validate=False)
        return tf.SparseTensor(tf.cast(parts.indices, tf.int64), parts.values, parts.like.shape[1:])

    def run(self, kind: str, piece: Piece) -> list[tuple[np.ndarray, ...]]:
        """Runs the compiled loop over a piece; a single step that returns its outputs is a function without a loop."""
        if not self._steps.returns_outputs(kind):
            # As one argument, as it was traced: of its leaves TensorFlow would first print all values into an error.
            self._loop(kind, piece.placed)(piece.placed)
            return []
        leaves = self._run_single(kind, _batch(piece.placed, 0))
        return [tuple(part.numpy() for part in self.workers.parts(leaf)) for leaf in leaves]

    def _run_single(self, kind: str, batch: Batch) -> list[Any]:
        key = ("single", self.workers.lengths)
        if key not in self._loops:
            self._loops[key] = _function(functools.partial(self._steps.run, kind))
        with self._steps.guarded(), self._random.drawing():  # a batch of a new shape is traced now
            leaves: list[Any] = self._loops[key](batch)
            return leaves

    def wait(self) -> None:
        """Waits until the device has finished all steps."""
        next(iter(self._steps.windows.values())).samples.numpy()

    def read(self, kind: str) -> Callable[[], Logs]:
        """Reads the logs now: copying them takes as long as waiting for them."""
        if kind not in self._readers:
            self._readers[kind] = _function(functools.partial(self._steps.read, kind)).get_concrete_function()
        logs = floats({name: value.numpy() for name, value in self._readers[kind]().items()})
        return lambda: logs

    def read_finite_steps(self, count: keras.Variable) -> Callable[[], float]:
        """Copies the count on the device; the function reads the copy."""
        value = count.value.read_value()
        return lambda: float(value.numpy())

    def reset(self, kind: str, window: WindowSums) -> None:
        """Opens the next window.

        Python waits for other threads at almost every operation of Keras, which takes as long as several steps of a
        small model. So what the sums and Keras's metrics assign is recorded once, and assigned without Keras.
        """
        if isinstance(self.workers, Replicas):
            window.reset()
            return
        if kind not in self._resets:
            with ChainedScope() as scope:
                window.reset_sums()
                for metric in filter(_is_reset_by_keras, window.metrics):
                    metric.reset_state()
                self._resets[kind] = [(v._value.handle, scope.get_current_value(v)) for v in scope.assigned.values()]
        for handle, zeros in self._resets[kind]:
            tf.raw_ops.AssignVariableOp(resource=handle, value=zeros)
        for metric in itertools.filterfalse(_is_reset_by_keras, window.metrics):
            metric.reset_state()

    def train_step_flops(self, batch: Batch) -> float | None:
        """Returns the operations of a training step, from the compiled loop for batches of this shape."""
        shapes = tuple(tuple(leaf.shape) for leaf in nest.flatten(self.workers.own_batch(batch)))
        ran = {tuple(shape for shape, _ in key[2:]): loop for key, loop in self._loops.items() if key[0] == "train"}
        counted = flops.of_tensorflow_loop(ran[shapes]) if shapes in ran else None
        return counted * self.workers.processes if counted else counted

    def inference_step_flops(self, batch: Batch) -> float | None:
        """Returns the operations of the inference step; traces it."""
        specs = nest.map_leaves(lambda leaf: tf.TensorSpec(leaf.shape, tf.as_dtype(leaf.dtype)), unpack(batch)[0])
        return flops.of_tensorflow_function(_function(self._steps.inference).get_concrete_function(specs))

    # -- state: the Keras objects hold it ------------------------------------------------------------------------------

    def owners(self) -> dict[str, Any]:
        """Returns the generator of the steps' `tf.random`."""
        return {"tf_random": self._random.generator}

    def get(self, keys: Sequence[str]) -> dict[str, np.ndarray]:
        """Returns the values of some variables."""
        return {key: _view(self._steps.variables[key].value.read_value()) for key in keys}

    def set(self, keys: Sequence[str], values: Mapping[str, Any]) -> None:
        """Replaces the values of some variables."""
        for key in keys:
            self._steps.variables[key].assign(values[key])


def _workers() -> Workers:
    """Returns the processes of the run, the replicas of the strategy whose scope is active, or this device alone."""
    if (processes := joined()) is not None:
        return SharedSteps(processes)
    return Replicas() if tf.distribute.has_strategy() else Workers()


def _placed(array: np.ndarray) -> tf.Tensor:
    """Returns an array as a tensor; on a CPU one that shares its memory, where its kernels can read that.

    Blocks are new memory that nothing changes. A copy of 100 batches of a small model takes over a millisecond.
    """
    is_readable = array.flags.c_contiguous and array.ctypes.data % ALIGNMENT == 0
    if not _has_gpu() and is_readable and array.flags.writeable and array.size and array.dtype.kind in "fiu":
        return tf.experimental.dlpack.from_dlpack(array.__dlpack__())
    return tf.convert_to_tensor(array)


def _view(tensor: tf.Tensor) -> np.ndarray:
    """Returns a view of the memory of a tensor; a copy of a scalar, since NumPy cannot view one in bfloat16."""
    return np.asarray(tensor if tensor.shape.rank else tensor.numpy())


def _is_reset_by_keras(metric: keras.Metric) -> bool:
    """Whether Keras's own code alone resets a metric, and those that it holds: user code may do more than assign."""
    parts = [metric, *getattr(metric, "metrics", ())]
    return all(type(part).reset_state.__module__.startswith("keras.") for part in parts)


def _batch(block: Any, index: Any) -> Batch:
    """Returns one batch of a block."""
    if isinstance(block, PlacedRows):
        return nest.map_leaves(lambda leaf: tf.gather(leaf, block.rows[index]), block.arrays)
    return nest.map_leaves(lambda leaf: leaf[index], block)


def _has_gpu() -> bool:
    return bool(tf.config.list_logical_devices("GPU"))


def _function(fn: Callable[..., Any], **options: Any) -> Any:
    """Compiles without autograph, as Keras does: `if tensor:` is an error, as on every backend."""
    return tf.function(fn, autograph=False, **options)


def _source(tensor: Any) -> Any:
    """Returns the tensor that this one was made from by changes of type and shape only."""
    unchanging = {"Cast", "ExpandDims", "Identity", "Reshape", "Squeeze"}
    while isinstance(tensor, tf.Tensor) and tensor.op.type in unchanging:
        tensor = tensor.op.inputs[0]
    return tensor


def _spec(data: Any) -> Any:
    """Returns the spec of blocks like this one, for any number of batches and of sparse or ragged values."""
    if isinstance(data, SparseArray):
        rank = data.indices.shape[-1]
        open_ended = {"indices": [None, None, rank], "values": [None, None]}
        shapes = {name: open_ended.get(name, [None, *part.shape[1:]]) for name, part in data._asdict().items()}
        return SparseArray(**{name: tf.TensorSpec(shapes[name], part.dtype) for name, part in data._asdict().items()})
    if isinstance(data, RaggedArray):
        first, *others = data.lengths
        lengths = (_spec(first), *(tf.TensorSpec([None, None], part.dtype) for part in others))
        return RaggedArray(lengths, tf.TensorSpec([None, None, *data.values.shape[2:]], data.values.dtype))
    if isinstance(data, dict):
        return {key: _spec(part) for key, part in data.items()}
    if isinstance(data, list | tuple):
        parts = [_spec(part) for part in data]
        return type(data)(*parts) if hasattr(data, "_fields") else type(data)(parts)
    return None if data is None else tf.TensorSpec([None, *data.shape[1:]], data.dtype)


def _placeholder(leaf: Any) -> tf.Tensor:
    array = on_host(leaf)
    return tf.compat.v1.placeholder(array.dtype, array.shape)


def _shape(value: Any) -> tuple:
    return tuple(value.shape) if hasattr(value, "shape") else ()


# -- random numbers ---------------------------------------------------------------------------------------------------

# `tf.random` keeps its state inside its operations, and no checkpoint contains that: a resumed run would draw other
# numbers. While steps are traced, its functions draw from a seed generator instead, which is saved with the state.


class StepRandom:
    """Replaces the generator of `tf.random` in the steps of an engine by one that is saved.

    Attributes:
      generator: The generator, part of the saved state; None until a step draws a number.
    """

    def __init__(self) -> None:
        self.generator: keras.random.SeedGenerator | None = None

    @contextlib.contextmanager
    def drawing(self) -> Iterator[None]:
        """Makes `tf.random` draw from the generator inside the block, in this thread and in those of its replicas."""
        with contextlib.ExitStack() as stack:
            for name, draw in _DRAWS.items():
                stack.enter_context(replaced(gen_random_ops, name, self._drawn_by(draw)))
            yield

    def _drawn_by(self, draw: Callable[..., Any]) -> Callable[..., Any]:
        def drawn(*args: Any, seed: int = 0, seed2: int = 0, **kwargs: Any) -> Any:
            kwargs.pop("name", None)
            return draw(self._next(), *args, **kwargs)

        return drawn

    def _next(self) -> Any:
        if self.generator is None:
            with tf.init_scope():
                self.generator = keras.random.SeedGenerator(0)
        drawn, offset = self.generator.next(), seed_offset()
        return tf.cast(drawn + tf.constant([offset, 0], drawn.dtype) if offset else drawn, "int32")


_DRAWS: dict[str, Callable[..., Any]] = {
    "random_uniform": lambda seed, shape, dtype: tf.random.stateless_uniform(shape, seed, dtype=dtype),
    "random_uniform_int": lambda seed, shape, minval, maxval: tf.random.stateless_uniform(
        shape, seed, minval, maxval, dtype=tf.as_dtype(getattr(minval, "dtype", tf.int32))
    ),
    "random_standard_normal": lambda seed, shape, dtype: tf.random.stateless_normal(shape, seed, dtype=dtype),
    "truncated_normal": lambda seed, shape, dtype: tf.random.stateless_truncated_normal(shape, seed, dtype=dtype),
    "random_shuffle": lambda seed, value: tf.random.experimental.stateless_shuffle(value, seed),
    "multinomial": lambda seed, logits, num_samples, output_dtype=tf.int64: tf.random.stateless_categorical(
        logits, num_samples, seed, dtype=output_dtype
    ),
}
"""Each stateful function of `tf.random`, and its stateless replacement."""


# -- tf.summary inside a step -----------------------------------------------------------------------------------------


class _RefusedSummaries(tf.summary.SummaryWriter):
    """A default writer that raises an error when a step writes to it."""

    @property
    def _resource(self) -> None:  # read by every function of tf.summary that writes
        raise UsageError(
            "tf.summary is called in a step, where no writer records it",
            remedy="return the scalar from train_step or validation_step, {self.loss: loss, 'name': value}, and it is "
            "logged; or set a writer of your own as the default, with "
            "tf.summary.create_file_writer(folder).as_default(): …",
        )

    def flush(self) -> None:
        """Does nothing: there is never anything to write."""


def summaries_refused() -> contextlib.AbstractContextManager[None]:
    """Makes `tf.summary` raise UsageError inside the block, unless the user has set a default writer."""
    if bool(tf.summary.should_record_summaries()):
        return contextlib.nullcontext()
    refusing: contextlib.AbstractContextManager[None] = _RefusedSummaries().as_default(step=0)
    return refusing
