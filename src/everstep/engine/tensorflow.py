"""The TensorFlow engine: the Keras variables are the state, and n steps are one loop inside a `tf.function`."""

import contextlib
import functools
import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from tensorflow.python.ops import gen_random_ops

from everstep.data import ALIGNMENT, ArrayStream, Block, OwnRows, RaggedArray, SparseArray, nest
from everstep.engine import flops
from everstep.engine.batch_dtypes import on_host
from everstep.engine.device_data import PlacedRows
from everstep.engine.engine import Engine
from everstep.engine.feed import Piece
from everstep.engine.logs import floats
from everstep.engine.probe import updates_skipped, watch_sparse_labels
from everstep.engine.processes import SharedSteps, results_in_logs, seed_offset
from everstep.engine.replaced import replaced
from everstep.engine.replicas import Replicas
from everstep.engine.tensorflow_processes import draws_of_this_process, joined
from everstep.engine.window import WindowSums
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


class TensorFlowEngine(Engine):
    """Runs steps on TensorFlow."""

    _loop_lengths = "any"  # the number of steps is an input of the compiled loop
    _window_type = TensorFlowSums

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        processes = joined()
        self._shared = None if processes is None else SharedSteps(processes)
        self._is_built = False
        self._replicas = Replicas()
        self._random = StepRandom()

    def describe(self) -> dict[str, Any]:
        """Returns how steps are run, for the run's record."""
        device = "gpu" if _has_gpu() else "cpu"
        return {"device": device, "loop": "while", "xla": bool(self._xla), "replicas": self._replica_count}

    @property
    def _replica_count(self) -> int:
        return self._replicas.count if self._shared is None else self._shared.size

    def strategy(self) -> Any:
        """Returns the `tf.distribute` strategy whose scope is active."""
        return tf.distribute.get_strategy()

    @property
    def _xla(self) -> bool | None:
        # On a CPU XLA is several times slower; what processes exchange it cannot compile.
        return True if self.enable_xla and _has_gpu() and self._shared is None else None

    # -- compiling -------------------------------------------------------------------------------------------------

    def _trace(self, step: Callable[[Any], Mapping[str, Any]], batch: Batch) -> dict[str, tuple]:
        # A bare graph: a tf.function would trace twice, and reject variables that only the second pass creates.
        # On several replicas, gradients and updates are where they talk to each other.
        graph = tf.__internal__.FuncGraph("trace")
        own = batch if self._shared is None else self._shared.own_batch(batch)
        skipped = (gradients_skipped(), updates_skipped(self.optimizers)) if self._replica_count == 1 else ()
        with contextlib.ExitStack() as stack:
            for context in (summaries_refused(), graph.as_default(), self._random.drawing(), *skipped):
                stack.enter_context(context)
            seen = stack.enter_context(watch_sparse_labels())
            placed = nest.map_leaves(_placeholder, own)
            outputs = self._on_devices(step, placed)
        labels = unpack(placed)[1]
        self._label_classes |= {labelled.classes for labelled in seen if _source(labelled.target) is labels}
        return {name: _shape(self._replicas.parts(value)[0]) for name, value in outputs.items()}

    def build(self, train_batch: Batch | None = None, validation_batch: Batch | None = None) -> None:
        """Builds what is created lazily, captures the state, and prepares the steps for several processes."""
        super().build(train_batch, validation_batch)
        if self._shared is not None:
            for kind, batch in (("train", train_batch), ("validation", validation_batch)):
                if kind in self.windows and self.windows[kind].reduction == "last":
                    self._find_results(self._shared, kind, batch)
            self._shared.prepare(self)
        self._is_built = True

    def _find_results(self, shared: SharedSteps, kind: str, batch: Batch) -> None:
        with tf.__internal__.FuncGraph("results").as_default(), self._random.drawing():
            placed = nest.map_leaves(_placeholder, shared.own_batch(batch))
            results_in_logs(self.windows[kind], lambda: self._user_logs(kind, placed))

    def _compile(self) -> None:
        self._loops: dict[Any, Any] = {}
        self._readers: dict[str, Any] = {}
        self._resets: dict[str, list[tuple[Any, tf.Tensor]]] = {}

    def _loop(self, kind: str, data: Any) -> Any:
        """Returns the compiled loop for batches of these shapes, for any number of batches."""
        spec = _spec(data)
        rows = tuple(data.rows.shape[1:]) if isinstance(data, PlacedRows) else None
        leaves = nest.flatten(spec if rows is None else spec.arrays)
        shared = () if self._shared is None else self._shared.lengths
        key = (kind, (rows is None, shared), *(((*(rows or ()), *s.shape[1:]), s.dtype) for s in leaves))
        if key not in self._loops:
            self._kind = kind
            step = self._train_step if kind == "train" else self._validation_step
            loop = _function(lambda block: self._many(step, block), jit_compile=self._xla)
            with self._guarded(), self._random.drawing():
                self._loops[key] = loop.get_concrete_function(spec)
        return self._loops[key]

    def _many(self, step: Callable[[Batch], Any], block: Any) -> None:
        self.compilations += 1
        count = tf.shape(block.rows if isinstance(block, PlacedRows) else nest.flatten(block)[0])[0]

        def one(index: tf.Tensor) -> tuple[tf.Tensor]:
            step(_batch(block, index))
            return (index + 1,)

        tf.while_loop(lambda index: index < count, one, (tf.constant(0),), parallel_iterations=1)

    @property
    def _sees_whole_loss(self) -> bool:
        return self._replicas.count == 1

    def _on_devices(self, step: Callable[[Batch], Any], batch: Batch) -> Any:
        if self._shared is None:
            return self._replicas.run(step, batch)
        if not self._is_built:  # traced by this process alone
            return step(batch)
        with draws_of_this_process():
            outputs = self._kind == "validation" and self.task.aggregates
            rows = lambda leaf, part: _some_rows(self.composed(leaf), part)  # noqa: E731
            return self._shared.run(self._kind, step, batch, rows, outputs)

    def _owners(self, used: Sequence[keras.Variable]) -> dict[str, Any]:
        random = self._random.generator
        return {**super()._owners(used), **({} if random is None else {"tf_random": random})}

    # -- running ---------------------------------------------------------------------------------------------------

    def place(self, data: Any) -> Any:
        """Places the data of a block on the device."""
        return nest.map_leaves(lambda leaf: _placed(on_host(leaf)), data)

    @property
    def own_rows(self) -> OwnRows | None:
        """Which rows of a batch this process needs; None if all."""
        return None if self._shared is None else self._shared.own_rows

    def place_block(self, block: Block) -> Any:
        """Places the rows of this process of all batches of a block."""
        return self.place(block.data if self._shared is None else self._shared.own_block(block))

    def why_not_on_device(self, stream: ArrayStream) -> str:
        """Returns why the arrays of a stream cannot live on the device."""
        return "on TensorFlow data lives on one device, and several share the batch" if self._replicas.count > 1 else ""

    def _sparse(self, parts: SparseArray) -> Any:
        return tf.SparseTensor(tf.cast(parts.indices, tf.int64), parts.values, parts.like.shape[1:])

    def _ragged(self, parts: RaggedArray) -> Any:
        return tf.RaggedTensor.from_nested_row_lengths(parts.values, parts.lengths, validate=False)

    def _train(self, piece: Piece) -> None:
        self._begin_call(piece)
        self._call("train", piece)

    def _begin_call(self, piece: Piece) -> None:
        if self._shared is not None:
            self._shared.begin_call(piece.block)

    def _validate(self, piece: Piece) -> list[tuple[np.ndarray, ...]]:
        self._begin_call(piece)
        if not self.task.aggregates:
            self._call("validation", piece)
            return []
        batch = _batch(piece.placed, 0)
        return self._replicas.results(self._single_validation(batch))

    def _call(self, kind: str, piece: Piece) -> None:
        # As one argument, as it was traced: with its leaves as arguments, TensorFlow prints them into an error first.
        self._loop(kind, piece.placed)(piece.placed)

    def _single_validation(self, batch: Batch) -> list[Any]:
        key = ("single", () if self._shared is None else self._shared.lengths)
        if key not in self._loops:
            self._loops[key] = _function(self._validation_step)
        self._kind = "validation"
        with self._guarded(), self._random.drawing():  # a batch of a new shape is traced now
            leaves: list[Any] = self._loops[key](batch)
            return leaves

    def wait(self) -> None:
        """Waits until the device has finished all steps."""
        next(iter(self.windows.values())).samples.numpy()

    def read(self, kind: str) -> Logs:
        """Returns the logs of the open window."""
        if kind not in self._readers:
            self._readers[kind] = _function(functools.partial(self._read, kind)).get_concrete_function()
        return floats({name: value.numpy() for name, value in self._readers[kind]().items()})

    def read_bad_step_later(self) -> Callable[[], int | None]:
        """Returns a function that returns the first step since the last `reset` or `load` whose loss is not finite."""
        watched = self.windows["train"].finite_steps
        if watched is None:
            return lambda: None
        count = watched.count.value.read_value()  # as it is now; later steps do not change it

        def read() -> int | None:
            number = float(count.numpy())
            return int(-number) if number < 0 else None

        return read

    def reset(self, kind: str) -> None:
        """Opens the next window.

        Python waits for other threads at almost every operation of Keras, which takes as long as several steps of a
        small model. So what the sums and Keras's metrics assign is recorded once, and assigned without Keras.
        """
        window = self.windows[kind]
        if not self._replicas.is_alone:
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
        own, parts = (batch, 1) if self._shared is None else (self._shared.own_batch(batch), self._shared.size)
        shapes = tuple(tuple(leaf.shape) for leaf in nest.flatten(own))
        ran = {tuple(shape for shape, _ in key[2:]): loop for key, loop in self._loops.items() if key[0] == "train"}
        counted = flops.of_tensorflow_loop(ran[shapes]) if shapes in ran else None
        return counted * parts if counted else counted

    def inference_step_flops(self, batch: Batch) -> float | None:
        """Returns the operations of the inference step; traces it."""
        specs = nest.map_leaves(lambda leaf: tf.TensorSpec(leaf.shape, tf.as_dtype(leaf.dtype)), unpack(batch)[0])
        step = _function(lambda features: self.task.inference_step(self.composed(features), self.model))
        return flops.of_tensorflow_function(step.get_concrete_function(specs))

    # -- state: the Keras objects hold it ------------------------------------------------------------------------------

    def push(self) -> None:
        """Does nothing: the Keras variables are the state."""

    def pull(self) -> None:
        """Does nothing: the Keras variables are the state."""

    def _get(self, keys: Sequence[str]) -> dict[str, np.ndarray]:
        return {key: _view(self.variables[key].value.read_value()) for key in keys}

    def _set(self, keys: Sequence[str], values: Mapping[str, Any]) -> None:
        for key in keys:
            self.variables[key].assign(values[key])


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


def _some_rows(tensor: Any, part: slice) -> Any:
    if not isinstance(tensor, tf.SparseTensor):
        return tensor[part]
    rest = [0] * (len(tensor.shape) - 1)
    return tf.sparse.slice(tensor, [part.start, *rest], [part.stop - part.start, *tensor.shape[1:]])


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
