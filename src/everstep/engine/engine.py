"""`Engine`: how steps run on one backend.

This file holds what all backends share: building what is created lazily, capturing the state, running the pieces of a
feed. A backend is one file that compiles the two steps, calls them, and moves the state:

    engine.build(batch, validation_batch)     # once: builds everything, captures the state
    feed = engine.feed(stream)
    engine.run(feed, 100)                     # the same bits however the 100 are split
    logs = engine.read("train")
    engine.reset("train")

The state moves only by these calls: `push` writes it to the Keras objects, `pull` reads it from them, `state` copies it
to the host, `load` replaces it. On TensorFlow the Keras variables are the state; on JAX they are stale between `run`
and `push`.

A block is several stacked batches, a piece is a block on the device; one piece is one compiled call.

Who calls whom in training, from the loop to the user's step:

    run               takes pieces from the feed until n steps are done       here
      _run_and_time   one piece; times the first ones                         here
        _train        one compiled call over the steps of a piece             jax.py, tensorflow.py, torch.py
          _train_step   one step: adds its logs to the window's sums          here, compiled by the backend
            _on_devices   on each device of this process                      replicas of tensorflow.py; else once
              _user_step    composes the batch, checks the logs               here
                task.train_step   the user's                                  task/task.py

An evaluation has the same layers: `evaluate`, `_validate_and_time`, `_validate`, `_validation_step`,
`_user_validation`, `task.validation_step`.
"""

import abc
import contextlib
import time
import zlib
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any, Literal

import keras
import numpy as np

from everstep.checkpoint import Digest, array_bytes
from everstep.data import ArrayStream, Block, OwnRows, RaggedArray, SparseArray, Stream, nest
from everstep.engine import exactness, finite
from everstep.engine import state as states
from everstep.engine.batch_dtypes import check_leaves
from everstep.engine.call_length import CallLength, LoopLengths
from everstep.engine.device_data import PlacedRows, ResidentData
from everstep.engine.explanations import explain, explain_shapes
from everstep.engine.feed import UNKNOWN_LENGTH_WINDOW, Feed, FeedInterrupted, Piece
from everstep.engine.logs import (
    GlobalStep,
    check_unique,
    checked_logs,
    checked_outputs,
    host_outputs,
    logs_in,
    reduced_logs,
    train_logs,
    validation_logs,
    watched_log,
)
from everstep.engine.probe import collection_paused, no_new_variables, watch_variables
from everstep.engine.window import FINITE_STEPS, WindowSums, measure, size_of
from everstep.errors import UsageError
from everstep.task import Task, adapt_loss_scaling, compiled_metrics, current_share, forget_scaled, unpack
from everstep.task.optim import batch_counts, held_optimizers, updates, weigh_batches
from everstep.types import ArrayParts, Batch, Logs, OwnState, State, StoredArray, StoredState

FLOPS_PER_SECOND = 1e14
"""What a fast GPU reaches in products of bfloat16, in a model that is not made of large ones alone."""
BYTES_COPIED_PER_SECOND = 4e9
"""How fast rows are gathered on the host and copied to a GPU, at least."""
LONG_STEP = 5e-4
"""The seconds of a step from which on the host keeps up with a GPU, one step at a time."""


class Engine(abc.ABC):
    """Runs a task's steps.

    Args:
      task: The task whose steps are run.
      model: The model of the task.
      optimizer: The optimizer that is passed to `train_step`; None for evaluation only.
      enable_xla: Whether to compile with XLA where the backend leaves the choice.
      cuda_graph: Whether to record steps as CUDA graphs on PyTorch.
    """

    is_eager = False
    """Whether the Python code of a step runs at every step, instead of only when it is compiled."""

    _loop_lengths: LoopLengths = "compiled"
    """Which lengths calls may have; see `CallLength`."""

    _traces_gradients = True
    """Whether the first trace of a training step includes its gradients."""

    _read_is_copy = False
    """Whether arrays that are read from the device are copies, which no step overwrites."""

    _window_type: type[WindowSums] = WindowSums
    """The sums of a window."""

    def __init__(
        self,
        task: Task,
        model: keras.Model,
        optimizer: keras.Optimizer | None = None,
        enable_xla: bool = False,
        cuda_graph: bool = True,
    ) -> None:
        self.task, self.model, self.optimizer = task, model, optimizer
        self.enable_xla, self.cuda_graph = enable_xla, cuda_graph
        self.compiler_options: dict[str, Any] = {}  # of XLA, on JAX; set them before `build`
        self.deterministic: bool | Literal["auto"] = "auto"  # on a GPU; set it before `build`
        self.settings: dict[str, Any] = {}  # how the model was prepared, for the run's record
        self.measures_norms = False  # of gradients and weights; set it before `build`
        self.variables: dict[str, keras.Variable] = {}
        self.frozen: list[str] = []  # keys of variables that no step changes; set by `build`
        self.unassigned: set[str] = set()  # keys of variables that no step assigns through Keras; set by `build`
        self.windows: dict[str, WindowSums] = {}
        self._used: list[keras.Variable] = []  # the variables that steps use; set by `build`
        self.watched_log = ""  # the name of the training log that must stay finite; set by `build`
        self.compilations = 0
        self.is_reused = False  # whether it was built for an earlier call, and compiles nothing in this one
        self.warmup = (0, 0.0)  # training steps in calls that compiled or were the first, and their seconds
        self.train_flops: dict[Any, float | None] = {}  # operations of a step by the shapes of its batch; see `flops`
        self._traced_flops = 0.0  # operations of the step that was traced last, as far as they are known
        self._step_flops: dict[str, float] = {}  # about those of the steps of a kind; set by `build`
        self._full_batch = 1  # its samples; set by `build`
        self._label_classes: set[int] = set()
        self._output_structure: Any = {}  # the nesting of what the validation step returns; set when it is traced
        self._not_numbers: set[str] = set()  # names of results of `reduce_aggregated_logs` that cannot be logged
        self._resident: dict[str, ResidentData] = {}  # by kind: `train`, `validation`
        self._resident_shapes: dict[str, Any] = {}  # of the arrays that programs were compiled for
        self._batch_bytes: dict[str, int] = {}
        self._call_ended = 0.0
        self._plan_calls()

    def _plan_calls(self) -> None:
        """Starts to plan the lengths of calls, of training and of evaluation; only training steps are timed."""
        self.call_length = CallLength(self._loop_lengths)
        self._call_lengths = {"train": self.call_length}
        self._call_lengths["validation"] = CallLength(self._loop_lengths, self.call_length.pace)

    # -- before the first step ---------------------------------------------------------------------------------

    def build(self, train_batch: Batch | None = None, validation_batch: Batch | None = None) -> None:
        """Builds what is created lazily, on the shapes of one batch, and captures the state.

        Raises:
          UsageError: As `collect`.
        """
        self.collect(train_batch, validation_batch)
        self._compile()
        for kind, example in (("train", train_batch), ("validation", validation_batch)):
            self._batch_bytes[kind] = sum(leaf.nbytes for leaf in nest.flatten(example))
            self._call_lengths[kind].set_batch(self._batch_bytes[kind])
        self.pull()

    def collect(self, train_batch: Batch | None = None, validation_batch: Batch | None = None) -> None:
        """Builds what is created lazily, on the shapes of one batch, and sets `variables`; reads no value of them.

        Raises:
          UsageError: A step has no loss, creates variables, uses variables that no object holds, or draws unseeded
            random numbers.
        """
        batch = validation_batch if train_batch is None else train_batch
        self._full_batch = size_of(batch)
        own = {kind: self.task.build_metrics(training=kind == "train") for kind in ("train", "validation")}
        for given in (train_batch, validation_batch):
            check_leaves(given)
        shapes_explained = explain_shapes(self.model, (train_batch, validation_batch))
        with shapes_explained, explain(self.task), collection_paused(), watch_variables() as watched:
            self._build_model(batch)
            self._build_optimizers()
            norms = {"train": measure(self.task, self.model, self.optimizer, self.measures_norms)}
            built = len(watched.created)
            watched.assigned.clear()  # building assigns, too
            shapes = self._probe_steps(train_batch, validation_batch, own)
            if any(variable.trainable for variable in watched.created[built:]):  # an optimizer may need them
                shapes = self._probe_steps(train_batch, validation_batch, own)
        self.task.label_classes = min(self._label_classes, default=None)
        for kind, logged in shapes.items():
            check_unique([metric.name for metric in own[kind]])
            self.windows[kind] = self._window_type(
                logged, self._metrics(kind, own), self.task.log_reduction(kind), norms.get(kind)
            )
            self.windows[kind].reset()
        self.watched_log = watched_log(list(shapes.get("train", {})), self.task)
        if self.watched_log and self._sees_whole_loss:
            self.windows["train"].watch(self.watched_log)
        self._used = watched.all
        self.variables = self._collected()
        states.check_held(self.variables, self._used)
        states.warn_of_untrained(self.variables)
        slots = {id(variable) for one in self.optimizers for variable in one.variables}  # not assigned through Keras
        self.frozen = states.frozen(self.variables, watched.assigned | slots)
        self.unassigned = {key for key, variable in self.variables.items() if id(variable) not in watched.assigned}

    def release(self) -> None:
        """Drops the references to the task and its data, and copies of the state; compiled programs stay."""
        vars(self).pop("task", None)
        self._resident.clear()
        for kind, size in self._batch_bytes.items():
            self._call_lengths[kind].set_batch(size)

    def reuse(self, task: Task) -> bool:
        """Replaces the task by another one for the same model, whose batches have the same shapes.

        Returns:
          Whether that is possible: the variables of the model, the optimizer and the task are still the same ones.
        """
        self.task = task
        task.label_classes = min(self._label_classes, default=None)
        held = self._collected()
        if held.keys() != self.variables.keys() or any(held[key] is not self.variables[key] for key in held):
            return False
        self.pull()
        for kind in self.windows:
            self.reset(kind)
        self.is_reused = True
        return True

    def _collected(self) -> dict[str, keras.Variable]:
        """Returns every variable of the run by key."""
        return states.collect(self._owners(self._used), self._used, self.task.keeps_other_variables)

    def _metrics(self, kind: str, own: Mapping[str, list[keras.Metric]]) -> list[keras.Metric]:
        """Returns the metrics of the task and of the model, some of which exist only after a step was traced."""
        own_steps = self.task.log_reduction(kind) == "last"
        return [*own[kind], *(compiled_metrics(self.model, own_steps) if self.model.compiled else [])]

    def _build_model(self, batch: Batch) -> None:
        if not self.model.built and type(self.model).call is not keras.Model.call:

            def call(features: Any) -> dict[str, Any]:
                self.task.inference_step(self.composed(features), self.model)
                return {}  # the outputs may be nested in any way, and are not needed

            self._trace(call, unpack(batch)[0])

    def _build_optimizers(self) -> None:
        if self.optimizer is not None and not self.optimizer.built and self.model.built:
            self.optimizer.build(self.model.trainable_variables)
        for held in self.optimizers:
            adapt_loss_scaling(held)
            if not self.task.averages_batches:
                weigh_batches(held)

    @property
    def optimizers(self) -> list[Any]:
        """The optimizer of the run, and those that the task and the model hold."""
        return held_optimizers(self.optimizer, self.task, self.model)

    def _probe_steps(
        self, train_batch: Batch | None, validation_batch: Batch | None, own: Mapping[str, list]
    ) -> dict[str, dict[str, tuple]]:
        """Traces both steps once; returns the shapes of their logs. What they build lazily exists afterwards."""
        logged: dict[str, dict[str, tuple]] = {}
        if train_batch is not None:
            shapes = self._trace(lambda b: self._user_step(b, self._metrics("train", own)), train_batch)
            logged["train"] = train_logs(shapes, self.task)
            self._step_flops["train"] = self._traced_flops * (1 if self._traces_gradients else 3)
        if validation_batch is not None:
            metrics = self._metrics("validation", own)
            shapes = self._trace(lambda b: logs_in(self._user_validation(b, metrics)), validation_batch)
            logged["validation"] = validation_logs(shapes, self.task)
            self._step_flops["validation"] = self._traced_flops
        return logged

    def _owners(self, used: Sequence[keras.Variable]) -> dict[str, Any]:
        owners: dict[str, Any] = {"model": self.model, "optimizer": self.optimizer}
        owners |= {f"metrics.{kind}": window.metrics for kind, window in self.windows.items()}
        owners["metrics.model"] = self.model.metrics if self.model.compiled else None
        owners |= states.model_owners(self.model, used)
        owners |= states.task_owners(self.task)
        owners |= {f"window.{kind}": window.owners for kind, window in self.windows.items()}
        return {role: owner for role, owner in owners.items() if owner is not None}

    # -- the steps, as stateful Keras code; compiled by the backend ----------------------------------------------------

    def _user_step(self, batch: Batch, metrics: Sequence[keras.Metric]) -> dict[str, Any]:
        forget_scaled()
        batch = self.composed(batch)
        return checked_logs(self.task.train_step(batch, self.model, self.optimizer, metrics), self.task)

    def _user_validation(self, batch: Batch, metrics: Sequence[keras.Metric]) -> dict[str, Any]:
        """Returns the outputs of the step with their nesting."""
        batch = self.composed(batch)
        return checked_outputs(self.task.call_validation_step(batch, self.model, metrics), self.task)

    def _user_logs(self, kind: str, batch: Batch) -> dict[str, Any]:
        """Runs the user's step of a kind; returns its logs."""
        metrics = self.windows[kind].metrics
        return self._user_step(batch, metrics) if kind == "train" else logs_in(self._user_validation(batch, metrics))

    def _train_step(self, batch: Batch) -> None:
        """Runs one training step and adds its logs to the window; the backend calls it inside of `_guarded`."""
        window = self.windows["train"]

        def step(part: Batch) -> None:
            own, whole = self._batch_weight(part)
            with batch_counts(whole):
                logs = self._user_step(part, window.metrics)
            window.add(logs, own)

        self._on_devices(step, batch)

    def _batch_weight(self, part: Batch) -> tuple[Any, Any]:
        """Returns how much the part of a batch of this device counts in the logs, and the whole batch in an update.

        The first is a number of samples, or what the task counts instead. The second is relative to a full batch, so
        that it is 1 for each batch of equally many samples.
        """
        share, own = current_share(), self._own_weight(part)
        if isinstance(own, int):
            return own, (own if share is None else share.samples) / self._full_batch
        return own, (own if share is None else share.weigh(own)) / float(self._full_batch)

    def _own_weight(self, part: Batch) -> Any:
        """Returns how much a part of a batch counts by itself: the number of its samples, or a tensor."""
        if type(self.task).batch_weight is Task.batch_weight:
            return size_of(part)
        weight = self.task.batch_weight(self.composed(part))
        return size_of(part) if weight is None else keras.ops.cast(weight, "float32")

    def _validation_step(self, batch: Batch) -> Any:
        """Runs one validation step and adds its logs to the window; returns the leaves of its outputs.

        A task that does not aggregate them has none. A plain list, because backends order dicts in their own ways.
        """
        window = self.windows["validation"]

        def step(part: Batch) -> list[Any]:
            outputs = self._user_validation(part, window.metrics)
            window.add(logs_in(outputs), self._own_weight(part))
            if not self.task.aggregates:
                return []
            self._output_structure = nest.structure(outputs)
            return nest.flatten(outputs)

        return self._on_devices(step, batch)

    @contextlib.contextmanager
    def _guarded(self) -> Iterator[None]:
        """Explains errors of the steps inside the block, and refuses variables that they create.

        A backend enters it where it traces a step, or, if it runs steps eagerly, once for all steps of a call.
        """
        with explain(self.task), no_new_variables():
            yield

    def _on_devices(self, step: Callable[[Batch], Any], batch: Batch) -> Any:
        """Runs a step on the devices of this process: on one, unless the backend overrides it."""
        return step(batch)

    def _read(self, kind: str) -> dict[str, Any]:
        """Returns the logs of a window as tensors; runs compiled."""
        logs, optimizer = self.windows[kind].read(), self.optimizer
        if kind == "train" and optimizer is not None:
            rate = getattr(optimizer, "learning_rate", None)  # an optimizer of several has none of its own
            logs.update(
                {} if rate is None else {"learning_rate": logs.get("learning_rate", rate)}, **updates(optimizer)
            )
        return {name: keras.ops.convert_to_tensor(value) for name, value in logs.items()}

    # -- running -------------------------------------------------------------------------------------------------

    def feed(
        self,
        stream: Stream,
        check: Callable[[Any], None] | None = None,
        single: bool = False,
        may_wait: Callable[[], bool] = lambda: True,
        kind: str = "train",
    ) -> Feed:
        """Opens a feed from a stream; of one that `place_on_device` has placed, only the numbers of the rows are read.

        Where several processes share each batch, the stream returns the rows of this one from now on.

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
        place: Callable[[Block], Any] = self.place_single if single else self.place_block
        data = self._resident.get(kind)
        if data is not None and data.stream is stream:
            arrays, stream = data.arrays, data.rows
            place_rows = place
            place = lambda block: PlacedRows(arrays, place_rows(block))  # noqa: E731
        if self.own_rows is not None:
            stream.keep_rows(self.own_rows)
        return Feed(stream, place, call_length, check, may_wait)

    @property
    def own_rows(self) -> OwnRows | None:
        """Which rows of a batch this process needs; None if all, as where it trains alone."""
        return None

    def place_on_device(self, kind: str, stream: ArrayStream) -> None:
        """Places the arrays of a stream on the device, where the steps gather its batches from now on.

        The position of the stream is copied now. Feeds of the stream share a position of their own.

        Args:
          kind: What the data is for: `train` or `validation`.
          stream: The stream, which `why_not_on_device` has nothing against.
        """
        rows = stream.row_numbers()
        self._resident[kind] = ResidentData(stream, rows, self._placed_whole(stream.arrays))
        self._resident_shapes.setdefault(kind, _shapes(stream.arrays))
        self._call_lengths[kind].set_batch(rows.peek().nbytes, on_device=True)

    def why_not_on_device(self, stream: ArrayStream) -> str:
        """Returns why this engine cannot place the arrays of a stream on the device; empty if it can."""
        return ""

    def hides_copies(self, kind: str) -> bool:
        """Whether a step certainly takes longer than the copy of its batch to a GPU, which then happens meanwhile."""
        seconds = self._step_flops.get(kind, 0.0) / FLOPS_PER_SECOND
        return seconds > max(self._batch_bytes[kind] / BYTES_COPIED_PER_SECOND, LONG_STEP)

    def keeps_placement(self, kind: str, fits: bool, wanted: bool) -> bool:
        """Returns whether the data of a kind lives on the device, where that is chosen automatically.

        Args:
          kind: The kind of data.
          fits: Whether it can.
          wanted: What is better for the speed; where the place changes bits, an earlier attempt has decided.
        """
        return wanted

    def has_programs_for(self, kind: str, stream: ArrayStream) -> bool:
        """Whether steps were compiled for arrays of this size, or for none yet: another size compiles them again."""
        return self._resident_shapes.get(kind, shapes := _shapes(stream.arrays)) == shapes

    def _placed_whole(self, arrays: Any) -> Any:
        """Places whole arrays on the device."""
        return self.place(arrays)

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
        begin, compiled, measuring = time.perf_counter(), self.compilations, self.call_length.measuring
        with collection_paused() if self.call_length.is_first else contextlib.nullcontext():  # it traces the step
            self._train(piece)
        overhead = time.perf_counter() - self._call_ended  # with the work of Python between the calls
        is_compiled = self.compilations != compiled
        is_warmup = is_compiled or self.call_length.is_first
        if measuring or is_warmup:
            self.wait()
        if is_warmup:
            steps, seconds = self.warmup
            self.warmup = steps + piece.count, seconds + time.perf_counter() - begin
        if measuring and (self.call_length.is_first or not is_compiled):
            self.call_length.record(time.perf_counter() - begin, overhead)
        self._call_ended = time.perf_counter()

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
        done, gathered = 0, None
        feed.expect(n if n > 0 else None, is_last=True)
        with self._preserved_training_window(), self._seeds_restored_on_error():
            self.reset("validation")
            while n < 0 or done < n:
                # outputs are returned to the host only by single steps
                piece = feed.take(1 if self.task.aggregates else n - done if n >= 0 else UNKNOWN_LENGTH_WINDOW)
                if piece is None:
                    break
                if before_call is not None:
                    before_call(done)
                leaves = self._validate_and_time(piece)
                if self.task.aggregates:
                    gathered = self.task.aggregate_logs(gathered, host_outputs(self._output_structure, leaves))
                done += piece.count
                if after_call is not None and not after_call(done):
                    break
            logs = self.read("validation")
        if loss_name is not None and self.task.loss in logs:
            logs = {loss_name: logs.pop(self.task.loss), **logs}
        if gathered is not None and not (isinstance(gathered, dict | list | tuple) and not gathered):
            results = self.task.reduce_aggregated_logs(gathered, GlobalStep(global_step))
            logs.update(reduced_logs(results, self._not_numbers))
        return logs, done

    def _validate_and_time(self, piece: Piece) -> list[tuple[np.ndarray, ...]]:
        """Evaluates a piece; where nothing is trained, its duration is the one that `call_length` needs."""
        measuring = "train" not in self.windows and self.call_length.measuring
        begin = time.perf_counter()
        leaves = self._validate(piece)
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
            self._set(shared, before)

    @contextlib.contextmanager
    def _seeds_restored_on_error(self) -> Iterator[None]:
        """Restores the seeds after an interrupted evaluation, so that the next one draws the same random numbers."""
        seeds = [key for key, variable in self.variables.items() if variable.name == "seed_generator_state"]
        before = self._copies(seeds)
        try:
            yield
        except BaseException:
            self._set(seeds, before)
            raise

    # -- state ---------------------------------------------------------------------------------------------------

    def state(self) -> State:
        """Returns a host copy of every variable by key, integers as int64.

        The sums of evaluations are not part of it: each evaluation starts from zero. Where the state is divided over
        several processes, all of them must call it.
        """
        return {key: states.canonical(value) for key, value in self._get(self._saved_keys()).items()}

    def own_state(self, into: OwnState | None = None, without: Collection[str] = ()) -> OwnState:
        """Returns the state with only the parts of this process of what is divided over several.

        Args:
          into: The result of an earlier call that is no longer needed; its memory is reused.
          without: Keys that are left out.
        """
        keys = [key for key in self._saved_keys() if key not in without]
        copy = not self._read_is_copy
        return {key: states.own(value, (into or {}).get(key), copy=copy) for key, value in self._held(keys).items()}

    def non_finite(self, state: OwnState | None = None) -> list[str]:
        """Returns the keys of the variables that hold NaN or an infinity.

        Args:
          state: What `own_state` has just returned, where the caller has it: then nothing is read again.
        """
        return finite.non_finite(self._held(self._saved_keys()) if state is None else state)

    def own_weights(self, keys: Sequence[str]) -> OwnState:
        """Returns some variables in the same form, but those of 8 bits, as in a quantized model, in their own type."""
        return {key: states.own(value, narrow=True) for key, value in self._held(keys).items()}

    def read_one_by_one(self, keys: Sequence[str] | None = None) -> Iterator[tuple[str, np.ndarray]]:
        """Yields what `state` returns, or some of it, sorted by key, with one variable at a time in memory."""
        for key in sorted(self._saved_keys() if keys is None else keys):
            yield key, states.canonical(self._get([key])[key])

    def digest_of(self, keys: Sequence[str]) -> str:
        """Returns the digest of some variables; see `everstep.checkpoint.digests`."""
        found = Digest()
        for key, array in self.read_one_by_one(keys):
            found.add(key, array)
        return found.hex()

    def checksums(self, keys: Sequence[str]) -> dict[str, int]:
        """Returns a number for each variable that is another one if its bits have changed.

        Only this process can compare them. Computed where the variables are: nothing large is copied.
        """
        return {key: zlib.crc32(array_bytes(self._get([key])[key])) for key in keys}

    @property
    def is_spread(self) -> bool:
        """Whether variables are divided over several processes: to read one, all of them must take part."""
        return False

    @contextlib.contextmanager
    def whole_model(self, others: Sequence[keras.Variable] = ()) -> Iterator[None]:
        """Inside the block this process can use the Keras model alone; all processes enter it.

        A model that is divided over several processes is then whole on one device of each of them.

        Args:
          others: Further variables to use, such as averages.
        """
        yield

    def exchange(self, pairs: Sequence[tuple[keras.Variable, keras.Variable]]) -> None:
        """Swaps the values of the two variables of each pair, bit by bit; a second call swaps them back."""
        names = {id(variable): key for key, variable in self.variables.items()}
        self._exchange([(names[id(one)], names[id(other)]) for one, other in pairs])

    def _exchange(self, pairs: Sequence[tuple[str, str]]) -> None:
        keys = [key for pair in pairs for key in pair]
        values = self._copies(keys)
        other = dict(pairs) | {second: first for first, second in pairs}
        self._set(keys, {key: values[other[key]] for key in keys})

    def _copies(self, keys: Sequence[str]) -> dict[str, np.ndarray]:
        return {key: value.copy() for key, value in self._get(keys).items()}

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
        expected = {key: self.variables[key] for key in self._saved_keys()}
        if base is not None and base["name"]:
            built = [key for key in expected if key.startswith("model/") and key not in state]
            states.check_base(base, len(built), lambda: self.digest_of(built))
            expected = {key: variable for key, variable in expected.items() if key not in built}
        if only is not None:
            expected = {key: variable for key, variable in expected.items() if key.startswith(only)}
            # Attributes of a task may exist only in training; the model is the same in both.
            state = {key: value for key, value in state.items() if key in expected or key.startswith("model/")}
        state = states.checked(expected, state)
        self.push()
        for key in expected:
            self._assign(key, state[key])
        if "train" in self.windows and self.windows["train"].finite_steps is not None:
            self.windows["train"].finite_steps.count.assign(0.0)
        self.pull()

    def _assign(self, key: str, value: np.ndarray | StoredArray) -> None:
        """Assigns a value of the host to a Keras object."""
        variable = self.variables[key]
        variable.assign(np.asarray(value).astype(variable.dtype))

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
            self._set(keys, before)
            self.push()

    def weights(self) -> dict[str, np.ndarray]:
        """Returns host copies of the model's trainable weights, by their keys below `model/`."""
        keys = [key for key, variable in self.variables.items() if key.startswith("model/") and variable.trainable]
        return {key.removeprefix("model/"): value for key, value in self._copies(keys).items()}

    def _saved_keys(self) -> list[str]:
        """Returns the keys of the variables that belong to the saved state."""
        temporary = ("metrics.validation/", "window.validation/", f"window.train/{FINITE_STEPS}")
        return [key for key in self.variables if not key.startswith(temporary)]

    @property
    def _sees_whole_loss(self) -> bool:
        """Whether the loss that a step returns is of the whole batch, not of the part of one replica."""
        return True

    # -- implemented by each backend ----------------------------------------------------------------------------------

    def strategy(self) -> Any:
        """Returns the current distribution strategy; None for one device."""
        return None

    @abc.abstractmethod
    def describe(self) -> dict[str, Any]:
        """Returns how steps are run, for the run's record."""

    @property
    def exactness(self) -> dict[str, Any]:
        """How far the bits of the steps so far can be repeated on this device; see `exactness.py`.

        Empty on a CPU, where they always can, and before the first step.
        """
        if self.describe()["device"] == "cpu":
            return {}
        if self.deterministic is False:
            return {"level": exactness.NONE, "reason": exactness.NOT_REQUESTED}
        return {"level": exactness.OPTION}

    @abc.abstractmethod
    def _trace(self, step: Callable[[Any], Mapping[str, Any]], batch: Batch) -> dict[str, tuple]:
        """Traces a step on the shapes of a batch, without changing any variable; returns the shapes of its outputs."""

    @abc.abstractmethod
    def _compile(self) -> None:
        """Prepares the compiled calls for the captured state."""

    def composed(self, batch: Batch) -> Batch:
        """Returns a batch on the device with sparse and ragged tensors assembled from their parts."""
        if isinstance(batch, SparseArray):
            return self._sparse(batch)
        if isinstance(batch, RaggedArray):
            return self._ragged(batch)
        if isinstance(batch, dict):
            return {key: self.composed(part) for key, part in batch.items()}
        if isinstance(batch, list | tuple):
            parts = [self.composed(part) for part in batch]
            return type(batch)(*parts) if hasattr(batch, "_fields") else type(batch)(parts)
        return batch

    @abc.abstractmethod
    def _sparse(self, parts: SparseArray) -> Any:
        """Returns a sparse tensor; a dense one if the backend has none."""

    def _ragged(self, parts: RaggedArray) -> Any:
        """Returns a ragged tensor."""
        raise UsageError(
            f"a batch holds a ragged tensor, which the backend {keras.backend.backend()!r} does not support",
            remedy="pad it to one shape, as x.to_tensor() does, or train on TensorFlow",
        )

    @abc.abstractmethod
    def place(self, data: Any) -> Any:
        """Places data on the device: a batch, or the batches of a block."""

    def place_block(self, block: Block) -> Any:
        """Places what this process needs of a block on the device; called by the thread of the feed."""
        return self.place(block.data)

    def place_single(self, block: Block) -> Any:
        """Places a block of a single batch, in a feed whose calls all hold one."""
        return self.place_block(block)

    @abc.abstractmethod
    def _train(self, piece: Piece) -> None:
        """Runs the training steps of a piece; may return before the device has finished."""

    @abc.abstractmethod
    def _validate(self, piece: Piece) -> list[tuple[np.ndarray, ...]]:
        """Runs the validation steps of a piece; returns what `_validation_step` returned for a single step.

        On the host, with one array per replica for each leaf. Empty if the task does not aggregate it.
        """

    @abc.abstractmethod
    def wait(self) -> None:
        """Waits until the device has finished all steps."""

    @abc.abstractmethod
    def read(self, kind: str) -> Logs:
        """Returns the logs of the open window `train` or `validation`."""

    def read_later(self, kind: str) -> Callable[[], Logs]:
        """Returns a function that returns the logs as of this call, also after later steps."""
        logs = self.read(kind)
        return lambda: logs

    def read_bad_step_later(self) -> Callable[[], int | None]:
        """Returns a function that returns the first step since the last `reset` or `load` whose loss was not finite.

        Steps are counted from 1. The function returns None if there was no such step, or it is unknown.
        """
        watched = self.windows["train"].finite_steps
        count = 0.0 if watched is None else float(keras.ops.convert_to_numpy(watched.count.value))
        return lambda: int(-count) if count < 0 else None

    @abc.abstractmethod
    def reset(self, kind: str) -> None:
        """Opens the next window."""

    def train_step_flops(self, batch: Batch) -> float | None:
        """Returns the floating-point operations of a training step that has run; None if they are unknown."""
        return None

    def inference_step_flops(self, batch: Batch) -> float | None:
        """Returns the floating-point operations of `task.inference_step` on a batch."""
        return None

    @abc.abstractmethod
    def push(self) -> None:
        """Writes the state to the Keras objects, before user code reads them."""

    @abc.abstractmethod
    def pull(self) -> None:
        """Reads the state from the Keras objects, after user code may have changed them."""

    @abc.abstractmethod
    def _get(self, keys: Sequence[str]) -> dict[str, np.ndarray]:
        """Returns the current values of some variables; they may be views, so copy them before the next step."""

    def _held(self, keys: Sequence[str]) -> Mapping[str, np.ndarray | ArrayParts]:
        """Returns the same as `_get`, but only the parts of this process of what is divided over several."""
        return self._get(keys)

    @abc.abstractmethod
    def _set(self, keys: Sequence[str], values: Mapping[str, Any]) -> None:
        """Replaces the values of some variables."""


def _shapes(arrays: Any) -> Any:
    return [(path, leaf.shape, leaf.dtype) for path, leaf in nest.walk(arrays)]
