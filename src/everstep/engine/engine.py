"""`Engine`: runs the steps of a task, the same way on every backend.

    engine.build(batch, validation_batch)     # once: builds everything, captures the state
    feed = engine.feed(stream)
    engine.run(feed, 100)                     # the same bits however the 100 are split
    logs = engine.read("train")
    engine.reset("train")

Three objects do the work. `Steps` (`steps.py`) is the code of a step; `building.py` builds what it needs. A `Backend`
(`protocol.py`) compiles it, runs it, and holds the state. The engine, in this file, decides what is run when: it makes
calls of many steps, times the first ones, evaluates, and moves the state.

The state moves only by these calls: `push` writes it to the Keras objects, `pull` reads it from them, `state` copies it
to the host, `load` replaces it. On TensorFlow and PyTorch the Keras variables are the state; on JAX they are stale
between `run` and `push`.

A block is several stacked batches, a piece is a block on the device; one piece is one compiled call.

Who calls whom in training, from the loop to the user's step:

    Engine.calls        takes pieces from the feed until n steps are done; times the first ones
      Backend.run       one compiled call over the steps of a piece
        Steps.run       one step: adds its logs to the window's sums; compiled by the backend
          Workers.run   on each device of this process
            task.train_step   the user's

An evaluation has the same layers: `Engine.evaluate`, and below it the same methods.
"""

import contextlib
import functools
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any

import keras
import numpy as np

from everstep.checkpoint import Digest
from everstep.data import ArrayStream, Block, OwnRows, Stream, nest
from everstep.engine import state as states
from everstep.engine.building import StepsBuilder
from everstep.engine.call_length import CallLength
from everstep.engine.device_data import ResidentData
from everstep.engine.feed import UNKNOWN_LENGTH_WINDOW, Feed, FeedInterrupted, Piece
from everstep.engine.logs import GlobalStep, host_outputs, reduced_logs
from everstep.engine.probe import collection_paused
from everstep.engine.protocol import Backend, EngineOptions
from everstep.engine.steps import Steps
from everstep.engine.window import FINITE_STEPS, WindowSums
from everstep.task import Task
from everstep.types import Batch, Logs, OwnState, State, StoredState

FLOPS_PER_SECOND = 1e14
"""What a fast GPU reaches in products of bfloat16, in a model that is not made of large ones alone."""
BYTES_COPIED_PER_SECOND = 4e9
"""How fast rows are gathered on the host and copied to a GPU, at least."""
LONG_STEP = 5e-4
"""The seconds of a step from which on the host keeps up with a GPU, one step at a time."""


class Engine:
    """Runs a task's steps.

    Args:
      task: The task whose steps are run.
      model: The model of the task.
      optimizer: The optimizer that is passed to `train_step`; None for evaluation only.
      backend: What computes.
    """

    def __init__(self, task: Task, model: keras.Model, optimizer: keras.Optimizer | None, backend: Backend) -> None:
        self.backend = backend
        self.steps = Steps(task, model, optimizer, backend.workers, backend.assemble)
        self._builder = StepsBuilder(self.steps, backend)
        self.model, self.optimizer = model, optimizer
        self.settings: dict[str, Any] = {}  # how the model was prepared, for the run's record
        self.measures_norms = False  # of gradients and weights; set it before `build`
        self.is_reused = False  # whether it was built for an earlier call, and compiles nothing in this one
        self.warmup = (0, 0.0)  # training steps in calls that compiled or were the first, and their seconds
        self.train_flops: dict[Any, float | None] = {}  # operations of a step by the shapes of its batch; see `flops`
        self._not_numbers: set[str] = set()  # names of results of `reduce_aggregated_logs` that cannot be logged
        self._resident: dict[str, ResidentData] = {}  # by kind: `train`, `validation`
        self._resident_shapes: dict[str, Any] = {}  # of the arrays that programs were compiled for
        self._batch_bytes: dict[str, int] = {}
        self._call_ended = 0.0
        self._plan_calls()

    def _plan_calls(self) -> None:
        """Starts to plan the lengths of calls, of training and of evaluation; only training steps are timed."""
        lengths = self.backend.loop_lengths
        self.call_length = CallLength(lengths)
        self._call_lengths = {"train": self.call_length, "validation": CallLength(lengths, self.call_length.pace)}

    @property
    def options(self) -> EngineOptions:
        """How steps are compiled; set them before `build`."""
        return self.backend.options

    @property
    def variables(self) -> dict[str, keras.Variable]:
        """Every variable of the run by key; set by `build`."""
        return self.steps.variables

    @property
    def windows(self) -> dict[str, WindowSums]:
        """The sums of the steps' logs, by kind of step: `train`, `validation`; set by `build`."""
        return self.steps.windows

    @property
    def frozen(self) -> list[str]:
        """Keys of variables that no step changes; set by `build`."""
        return self.steps.frozen

    @property
    def unassigned(self) -> set[str]:
        """Keys of variables that no step assigns through Keras; set by `build`."""
        return self._builder.unassigned

    @property
    def watched_log(self) -> str:
        """The name of the training log that must stay finite; set by `build`."""
        return self._builder.watched_log

    @property
    def optimizers(self) -> list[Any]:
        """The optimizer of the run, and those that the task and the model hold."""
        return self.steps.optimizers

    @property
    def is_eager(self) -> bool:
        """Whether the Python code of a step runs at every step, instead of only when it is compiled."""
        return self.backend.is_eager

    @property
    def compilations(self) -> int:
        """How often a program was compiled or recorded for the steps."""
        return self.backend.compilations

    def describe(self) -> dict[str, Any]:
        """Returns how steps are run, for the run's record."""
        return self.backend.describe()

    @property
    def exactness(self) -> dict[str, Any]:
        """How far the bits of the steps so far can be repeated on this device; see `Backend.exactness`."""
        return self.backend.exactness

    # -- before the first step ---------------------------------------------------------------------------------

    def build(self, train_batch: Batch | None = None, validation_batch: Batch | None = None) -> None:
        """Builds what is created lazily, on the shapes of one batch, and captures the state.

        Raises:
          UsageError: As `collect`.
        """
        self.collect(train_batch, validation_batch)
        examples = {"train": train_batch, "validation": validation_batch}
        self.backend.compile(self.steps, examples)
        self.backend.workers.prepare(self.steps, examples, self._builder.trace)
        self._plan_calls()
        self._plan_single_steps()
        for kind, example in examples.items():
            self._batch_bytes[kind] = sum(leaf.nbytes for leaf in nest.flatten(example))
            self._call_lengths[kind].set_batch(self._batch_bytes[kind])
        self.pull()

    def collect(self, train_batch: Batch | None = None, validation_batch: Batch | None = None) -> None:
        """Builds what is created lazily, on the shapes of one batch, and sets `variables`; reads no value of them.

        Raises:
          UsageError: A step has no loss, creates variables, uses variables that no object holds, or draws unseeded
            random numbers.
        """
        self._builder.build(train_batch, validation_batch, self.measures_norms)

    def release(self) -> None:
        """Drops the references to the task and its data, and copies of the state; compiled programs stay."""
        vars(self.steps).pop("task", None)
        self._resident.clear()
        for kind, size in self._batch_bytes.items():
            self._call_lengths[kind].set_batch(size)
        self.backend.release()

    def reuse(self, task: Task) -> bool:
        """Replaces the task by another one for the same model, whose batches have the same shapes.

        Returns:
          Whether that is possible: the variables of the model, the optimizer and the task are still the same ones.
        """
        self.steps.task = task
        self._builder.use_label_classes()
        collected = self._builder.collected()
        if collected.keys() != self.variables.keys():
            return False
        if any(collected[key] is not variable for key, variable in self.variables.items()) or not self.backend.reuse():
            return False
        self._plan_single_steps()
        self.pull()
        for kind in self.windows:
            self.reset(kind)
        self.is_reused = True
        return True

    def _plan_single_steps(self) -> None:
        """Plans calls of one step where the backend has found out that each must be one, maybe in an earlier run."""
        for kind, call_length in self._call_lengths.items():
            if self.backend.runs_single_steps(kind):
                call_length.use_single_steps()

    # -- running -------------------------------------------------------------------------------------------------

    def feed(
        self,
        stream: Stream,
        check: Callable[[Any], None] | None = None,
        single: bool = False,
        may_wait: Callable[[], bool] = lambda: True,
        kind: str = "train",
    ) -> Feed:
        """Opens a feed from a stream.

        Of a stream that `place_on_device` has placed, the feed reads row numbers only. Where several processes share
        each batch, the stream returns the rows of this one from now on.

        Args:
          stream: The stream to read.
          check: Called with each block on the host; may raise.
          single: Whether each call holds a single batch.
          may_wait: Polled while waiting for data; returns False once a stop is requested.
          kind: What the batches are for: `train` or `validation`.
        """
        call_length = self._call_lengths[kind]
        if single:
            call_length = CallLength("single")
            call_length.set_batch(self._batch_bytes[kind])
        place: Callable[[Block], Any] = functools.partial(self.backend.place, single=single)
        resident = self._resident.get(kind)
        if resident is not None and resident.stream is stream:
            place, stream = functools.partial(resident.place, place), resident.rows
        if self.own_rows is not None:
            stream.keep_rows(self.own_rows)
        return Feed(stream, place, call_length, check, may_wait)

    @property
    def own_rows(self) -> OwnRows | None:
        """Which rows of a batch this process needs; None if all, as where it trains alone."""
        return self.backend.workers.own_rows

    def place_on_device(self, kind: str, stream: ArrayStream) -> None:
        """Places the arrays of a stream on the device, where the steps gather its batches from now on.

        The position of the stream is copied now. Feeds of the stream share a position of their own.

        Args:
          kind: What the data is for: `train` or `validation`.
          stream: The stream, which `why_not_on_device` has nothing against.
        """
        rows = stream.row_numbers()
        self._resident[kind] = ResidentData(stream, rows, self.backend.place_whole(stream.arrays))
        self._resident_shapes.setdefault(kind, _shapes(stream.arrays))
        self._call_lengths[kind].set_batch(rows.peek().nbytes, on_device=True)

    def why_not_on_device(self, stream: ArrayStream) -> str:
        """Returns why this engine cannot place the arrays of a stream on the device; empty if it can."""
        return self.backend.workers.why_not_on_device()

    def hides_copies(self, kind: str) -> bool:
        """Whether a step certainly takes longer than the copy of its batch to a GPU, which then happens meanwhile."""
        seconds = self._builder.flops.get(kind, 0.0) / FLOPS_PER_SECOND
        return seconds > max(self._batch_bytes[kind] / BYTES_COPIED_PER_SECOND, LONG_STEP)

    def keeps_placement(self, kind: str, fits: bool, wanted: bool) -> bool:
        """Returns whether the data of a kind lives on the device, where that is chosen automatically.

        Args:
          kind: The kind of data.
          fits: Whether it can.
          wanted: What is better for the speed; where the place changes bits, an earlier attempt has decided.
        """
        return self.backend.keeps_placement(kind, fits, wanted)

    def has_programs_for(self, kind: str, stream: ArrayStream) -> bool:
        """Whether steps were compiled for arrays of this size, or for none yet: another size compiles them again."""
        return self._resident_shapes.get(kind, shapes := _shapes(stream.arrays)) == shapes

    def run(self, feed: Feed, n: int) -> int:
        """Trains on the next `n` batches; returns the number of steps done, fewer if the data ended."""
        return max(self.calls(feed, n), default=0)

    def calls(self, feed: Feed, n: int, steps_left: int | None = None) -> Iterator[int]:
        """Trains on the next `n` batches, call by call; whoever iterates may end it between two calls.

        Args:
          feed: The feed that the batches are taken from.
          n: The number of steps.
          steps_left: How many steps will be run in windows of `n`, these included; None if that is unknown. Only the
            lengths of calls depend on it.

        Yields:
          The number of steps done, after each compiled call: in the end fewer than `n` if the data ended, or a stop was
          requested while it was waited for.
        """
        done = 0
        feed.expect(n, steps_left)
        self._call_ended = time.perf_counter()
        while done < n:
            position = feed.state()
            try:
                piece = feed.take(n - done)
            except FeedInterrupted:
                break
            if piece is None:
                break
            try:
                self._run_and_time(piece)
            except BaseException:
                with contextlib.suppress(FeedInterrupted):
                    feed.restore(position)  # the batches of a failed call will be taken again
                raise
            done += piece.count
            yield done

    def _run_and_time(self, piece: Piece) -> None:
        """Trains on a piece; waits for it and records its duration while `call_length` needs that."""
        begin, compiled, measuring = time.perf_counter(), self.backend.compilations, self.call_length.measuring
        with collection_paused() if self.call_length.is_first else contextlib.nullcontext():  # it traces the step
            self._run_piece("train", piece)
        overhead = time.perf_counter() - self._call_ended  # with the work of Python between the calls
        is_compiled = self.backend.compilations != compiled
        is_warmup = is_compiled or self.call_length.is_first
        if measuring or is_warmup:
            self.wait()
        if is_warmup:
            steps, seconds = self.warmup
            self.warmup = steps + piece.count, seconds + time.perf_counter() - begin
        if measuring and (self.call_length.is_first or not is_compiled):
            self.call_length.record(time.perf_counter() - begin, overhead)
        self._call_ended = time.perf_counter()

    def _run_piece(self, kind: str, piece: Piece) -> list[tuple[np.ndarray, ...]]:
        self.backend.workers.begin_call(piece.block)
        outputs = self.backend.run(kind, piece)
        if self.backend.runs_single_steps(kind):  # the first call may have shown it
            self._call_lengths[kind].use_single_steps()
        return outputs

    def evaluate(
        self,
        feed: Feed,
        n: int = -1,
        global_step: int = 0,
        before_call: Callable[[int], None] | None = None,
        after_call: Callable[[int], bool] | None = None,
        loss_name: str | None = None,
    ) -> tuple[Logs, int]:
        """Evaluates the next `n` batches, or all of them; the sums of the training window are left unchanged.

        Args:
          feed: The feed that the batches are taken from.
          n: The number of batches; -1 for all.
          global_step: Steps trained so far, for `reduce_aggregated_logs`.
          before_call: Called before each compiled call with the number of batches done.
          after_call: Called after each; returns False to end the evaluation early.
          loss_name: The name of the loss in the logs, where it comes first; by default the name that the steps use.
            A loss that `reduce_aggregated_logs` returns is logged in addition.

        Returns:
          The logs, and the number of batches evaluated.

        Raises:
          FeedInterrupted: The next batch is not ready, and a stop was requested.
        """
        task, done, gathered = self.steps.task, 0, None
        feed.expect(n if n > 0 else None, is_last=True)
        with self._preserved_training_window(), self._seeds_restored_on_error():
            self.reset("validation")
            while n < 0 or done < n:
                # outputs are returned to the host only by single steps
                piece = feed.take(1 if task.aggregates else n - done if n >= 0 else UNKNOWN_LENGTH_WINDOW)
                if piece is None:
                    break
                if before_call is not None:
                    before_call(done)
                leaves = self._validate_and_time(piece)
                if task.aggregates:
                    gathered = task.aggregate_logs(gathered, host_outputs(self.steps.output_structure, leaves))
                done += piece.count
                if after_call is not None and not after_call(done):
                    break
            logs = self.read("validation")
        if loss_name is not None and task.loss in logs:
            logs = {loss_name: logs.pop(task.loss), **logs}
        if gathered is not None and not (isinstance(gathered, dict | list | tuple) and not gathered):
            results = task.reduce_aggregated_logs(gathered, GlobalStep(global_step))
            logs.update(reduced_logs(results, self._not_numbers))
        return logs, done

    def _validate_and_time(self, piece: Piece) -> list[tuple[np.ndarray, ...]]:
        """Evaluates a piece; where nothing is trained, its duration is the one that `call_length` needs."""
        measuring = "train" not in self.windows and self.call_length.measuring
        begin = time.perf_counter()
        leaves = self._run_piece("validation", piece)
        if measuring:
            self.wait()
            self.call_length.record(time.perf_counter() - begin)
        return leaves

    @contextlib.contextmanager
    def _preserved_training_window(self) -> Iterator[None]:
        """Restores the metrics that training and evaluation share: a compiled model has one set for both."""
        validation = {id(v) for v in self.windows["validation"].variables}
        train = self.windows["train"].variables if "train" in self.windows else []
        shared = [key for key, v in self.variables.items() if id(v) in validation and any(v is t for t in train)]
        before = self._copies(shared)
        try:
            yield
        finally:
            self.backend.set(shared, before)

    @contextlib.contextmanager
    def _seeds_restored_on_error(self) -> Iterator[None]:
        """Restores the seeds after an interrupted evaluation, so that the next one draws the same random numbers."""
        seeds = [key for key, variable in self.variables.items() if variable.name == "seed_generator_state"]
        before = self._copies(seeds)
        try:
            yield
        except BaseException:
            self.backend.set(seeds, before)
            raise

    # -- state ---------------------------------------------------------------------------------------------------

    def state(self) -> State:
        """Returns a host copy of every variable by key, integers as int64.

        The sums of evaluations are not part of it: each evaluation starts from zero. Where the state is divided over
        several processes, all of them must call it.
        """
        return {key: states.canonical(value) for key, value in self.backend.get(self._saved_keys()).items()}

    def own_state(self, into: OwnState | None = None, without: Collection[str] = ()) -> OwnState:
        """Returns the state with only the parts of this process of what is divided over several.

        Args:
          into: The result of an earlier call that is no longer needed; its memory is reused.
          without: Keys that are left out.
        """
        return self.backend.copy([key for key in self._saved_keys() if key not in without], into)

    def prepare_copies(self, without: Collection[str] = ()) -> None:
        """Prepares what `own_state` will need, without waiting for it; without this its first calls take longer."""
        self.backend.prepare_copies([key for key in self._saved_keys() if key not in without])

    def non_finite(self, state: OwnState | None = None) -> list[str]:
        """Returns the keys of the variables that hold NaN or an infinity.

        Args:
          state: What `own_state` has just returned, where the caller has it: then nothing is read again.
        """
        return self.backend.non_finite(self._saved_keys(), state)

    def own_weights(self, keys: Sequence[str]) -> OwnState:
        """Returns some variables in the same form, but those of 8 bits, as in a quantized model, in their own type."""
        return {key: states.own(value, narrow=True) for key, value in self.backend.get_own_parts(keys).items()}

    def read_one_by_one(self, keys: Sequence[str] | None = None) -> Iterator[tuple[str, np.ndarray]]:
        """Yields what `state` returns, or some of it, sorted by key, with one variable at a time in memory."""
        for key in sorted(self._saved_keys() if keys is None else keys):
            yield key, states.canonical(self.backend.get([key])[key])

    def digest_of(self, keys: Sequence[str]) -> str:
        """Returns the digest of some variables; see `everstep.checkpoint.digests`."""
        digest = Digest()
        for key, array in self.read_one_by_one(keys):
            digest.add(key, array)
        return digest.hex()

    def checksums(self, keys: Sequence[str]) -> dict[str, int]:
        """Returns a number for each variable that is another one if its bits have changed.

        Only this process can compare them. Computed where the variables are: nothing large is copied.
        """
        return self.backend.checksums(keys)

    @property
    def is_spread(self) -> bool:
        """Whether variables are divided over several processes: to read one, all of them must take part."""
        return self.backend.is_spread

    @contextlib.contextmanager
    def whole_model(self, others: Sequence[keras.Variable] = ()) -> Iterator[None]:
        """Inside the block this process can use the Keras model alone; all processes enter it.

        A model that is divided over several processes is then whole on one device of each of them.

        Args:
          others: Further variables to use, such as averages.
        """
        with self.backend.whole_model(others):
            yield

    def exchange(self, pairs: Sequence[tuple[keras.Variable, keras.Variable]]) -> None:
        """Swaps the values of the two variables of each pair, bit by bit; a second call swaps them back."""
        names = {id(variable): key for key, variable in self.variables.items()}
        self.backend.exchange([(names[id(first)], names[id(second)]) for first, second in pairs])

    def _copies(self, keys: Sequence[str]) -> dict[str, np.ndarray]:
        return {key: value.copy() for key, value in self.backend.get(keys).items()}

    def load(
        self, state: StoredState, only: tuple[str, ...] | None = None, base: Mapping[str, Any] | None = None
    ) -> None:
        """Replaces the state. Its keys must be exactly those of this engine, or, to evaluate, those of some roles.

        Args:
          state: A result of `state`, from this process or another one.
          only: Beginnings of keys, such as `states.EVALUATED`; other keys of `state` are ignored.
          base: The name and digest of the weights of the model that are not in the state, because the model is built
            with them.

        Raises:
          UsageError: Keys, shapes or dtypes differ, or the model was built with other weights; nothing was changed.
        """
        state = self.check(state, only, base)
        self.push()
        for key, array in state.items():
            self.backend.assign(self.variables[key], key, array)
        if "train" in self.windows and self.windows["train"].finite_steps is not None:
            self.windows["train"].finite_steps.count.assign(0.0)
        self.pull()

    def check(
        self, state: StoredState, only: tuple[str, ...] | None = None, base: Mapping[str, Any] | None = None
    ) -> StoredState:
        """Returns the part of a state that `load` takes, with its arguments.

        Raises:
          UsageError: Keys, shapes or dtypes differ, or the model was built with other weights.
        """
        expected = {key: self.variables[key] for key in self._saved_keys()}
        if base is not None and base["name"]:
            built = [key for key in expected if key.startswith("model/") and key not in state]
            states.check_base(base, len(built), lambda: self.digest_of(built))
            expected = {key: variable for key, variable in expected.items() if key not in built}
        if only is not None:
            expected = {key: variable for key, variable in expected.items() if key.startswith(only)}
            # Attributes of a task may exist only in training; the model is the same in both.
            state = {key: value for key, value in state.items() if key in expected or key.startswith("model/")}
        given = states.checked(expected, state)
        return {key: given[key] for key in expected}

    @contextlib.contextmanager
    def model_view(self) -> Iterator[keras.Model]:
        """Yields the model with the current state, to call it between two steps.

        Changes that the calls make to random generators and to non-trainable variables are undone.
        """
        evaluated = {key: variable for key, variable in self.variables.items() if key.startswith(states.EVALUATED)}
        keys = [key for key, variable in evaluated.items() if not variable.trainable]
        before = self._copies(keys)
        self.push()
        try:
            with self.whole_model():
                yield self.model
        finally:
            self.backend.set(keys, before)
            self.push()

    def weights(self) -> dict[str, np.ndarray]:
        """Returns host copies of the model's trainable weights, by their keys below `model/`."""
        keys = [key for key, variable in self.variables.items() if key.startswith("model/") and variable.trainable]
        return {key.removeprefix("model/"): value for key, value in self._copies(keys).items()}

    def _saved_keys(self) -> list[str]:
        """Returns the keys of the variables that belong to the saved state."""
        temporary = ("metrics.validation/", "window.validation/", f"window.train/{FINITE_STEPS}")
        return [key for key in self.variables if not key.startswith(temporary)]

    def push(self) -> None:
        """Writes the state to the Keras objects, before user code reads them."""
        self.backend.push()

    def pull(self) -> None:
        """Reads the state from the Keras objects, after user code may have changed them."""
        self.backend.pull()

    # -- logs ----------------------------------------------------------------------------------------------------------

    def read(self, kind: str) -> Logs:
        """Returns the logs of the open window `train` or `validation`."""
        return self.backend.read(kind)()

    def read_later(self, kind: str) -> Callable[[], Logs]:
        """Returns a function that returns the logs as of this call, also after later steps."""
        return self.backend.read(kind)

    def read_bad_step_later(self) -> Callable[[], int | None]:
        """Returns a function that returns the first step since the last `reset` or `load` whose loss was not finite.

        Steps are counted from 1. The function returns None if there was no such step, or it is unknown.
        """
        watched = self.windows["train"].finite_steps
        if watched is None:
            return lambda: None
        read = self.backend.read_finite_steps(watched.count)

        def bad_step() -> int | None:
            count = read()
            return int(-count) if count < 0 else None

        return bad_step

    def reset(self, kind: str) -> None:
        """Opens the next window."""
        self.backend.reset(kind, self.windows[kind])

    def wait(self) -> None:
        """Waits until the device has finished all steps."""
        self.backend.wait()

    def train_step_flops(self, batch: Batch) -> float | None:
        """Returns the floating-point operations of a training step that has run; None if they are unknown."""
        return self.backend.train_step_flops(batch)

    def inference_step_flops(self, batch: Batch) -> float | None:
        """Returns the floating-point operations of `task.inference_step` on a batch; None if they are unknown."""
        return self.backend.inference_step_flops(batch)


def _shapes(arrays: Any) -> Any:
    return [(path, leaf.shape, leaf.dtype) for path, leaf in nest.walk(arrays)]
