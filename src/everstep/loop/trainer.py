"""`Trainer`: the inner loop, `train(num_steps) -> logs` and `evaluate(num_steps) -> logs`.

The controller decides when to train, evaluate and save; the engine runs the steps.
"""

import contextlib
import dataclasses
import functools
import math
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any

import keras

from everstep.checkpoint import BASE_KEY
from everstep.data import ArrayStream, CountedStream, MappedStream, Stream, keep_first_batches, make_stream
from everstep.engine import (
    EVALUATED,
    Engine,
    Feed,
    compiler_options,
    create_engine,
    name_variables,
    place_data,
    prepare_model,
)
from everstep.errors import BadDataError, Problem, TrainingError, UsageError, problems_under
from everstep.loop.frozen import FrozenWeights
from everstep.loop.inner_loop import InnerLoop
from everstep.loop.lazy_logs import LazyLogs
from everstep.loop.recovery import BadBatchSkipper, SkippedUpdates
from everstep.loop.untouched import Untouched
from everstep.task import Task, unpack
from everstep.task.optim import find_average, with_averages
from everstep.types import Batch, Logs, OwnState, StoredState


class Trainer(InnerLoop):
    """Trains and evaluates a task.

        trainer = Trainer(config, task, model, optimizer)
        logs = trainer.train(100)         # {"training_loss": …, "accuracy": …, "learning_rate": …}
        logs = trainer.evaluate(-1)       # {"validation_loss": …, "accuracy": …}

    Args:
      config: An ExperimentConfig; its task's data sections, trainer and runtime are read.
      task: The task.
      model: The model to train or evaluate.
      optimizer: The optimizer; not needed to evaluate.
      train: Whether the trainer will train.
      evaluate: Whether the trainer will evaluate.
      train_dataset: Data to train on instead of the task's.
      validation_dataset: Data to evaluate on instead of the task's.
    """

    def __init__(
        self,
        config: Any,
        task: Task,
        model: keras.Model,
        optimizer: keras.Optimizer | None = None,
        train: bool = True,
        evaluate: bool = True,
        train_dataset: Any = None,
        validation_dataset: Any = None,
    ) -> None:
        self.config, self.task, self.model, self.optimizer = config, task, model, optimizer
        self.global_step = 0
        self._restored: tuple[int, dict[str, Any]] = 0, {}  # the step and the position of the data that it began at
        self._window_start = 0  # the step at which the engine's window was opened
        self._bad_steps: dict[int, int] = {}  # the first bad step of a window, by the window's last
        self._checked: set[int] = set()  # ids of the array streams that were checked as a whole
        self._warmups: list[Callable[[], tuple[int, float]]] = []  # of each stage's engine
        self.evaluated_batches = 0
        self._may_wait: Callable[[], bool] = lambda: True  # of the current call
        self._trains, self._evaluates = train, evaluate
        self._build(train_dataset, validation_dataset)

    def _build(self, train_dataset: Any, validation_dataset: Any) -> None:
        """Creates the streams, reads the first batches, and builds the engine for their shapes."""
        settings = self._prepare(train_dataset, validation_dataset)
        self.engine = engine = self._built_engine(self.train_example, self._validation_example)
        engine.settings = settings
        steps, seconds = engine.warmup  # an engine may be reused
        self._warmups.append(lambda: (engine.warmup[0] - steps, engine.warmup[1] - seconds))
        self.data_on_device = self._place_data()  # its bytes, by `train` and `validation`
        self.frozen = FrozenWeights(engine, self.task.base_weights() if self._trains else "")
        self._updates_without_effect = SkippedUpdates(self.optimizer, self.global_step)
        self._untouched = Untouched(engine)
        for stream in (self.train_stream, self.validation_stream):
            self._check_arrays(stream)
        self._train_feed = self._feed(self.train_stream) if self.train_stream is not None else None
        self._validation_feed: Feed | None = None  # of the current evaluation, or, closed, of the last one

    def _prepare(self, train_dataset: Any, validation_dataset: Any) -> dict[str, Any]:
        """Prepares model and optimizer, creates the streams, and reads the first batches; returns the settings."""
        settings = prepare_model(self.model, self.config.runtime)
        self.train_stream, self.validation_stream = self._streams(train_dataset, validation_dataset)
        if self.validation_stream is not None:
            _require_end(self.validation_stream, self.config.trainer.validation_steps)
        if (average := find_average(self.optimizer)) is not None:
            average.track(self.model)
        name_variables(self.task, self.model, self.optimizer)
        self.train_example = _first(self.train_stream, True)
        self._validation_example = _first(self.validation_stream, False)
        self.example = self.train_example if self._validation_example is None else self._validation_example
        return settings

    def _built_engine(self, train_batch: Batch | None, validation_batch: Batch | None) -> Engine:
        """Returns an engine that is built for the shapes of these batches."""
        engine = self._new_engine()
        engine.build(train_batch, validation_batch)
        return engine

    def _new_engine(self) -> Engine:
        """Returns an engine as configured, not built yet."""
        runtime = self.config.runtime
        engine = create_engine(
            self.task,
            self.model,
            self.optimizer,
            enable_xla=runtime.enable_xla,
            cuda_graph=runtime.cuda_graph,
            compiler_options=compiler_options(runtime.xla_preset),
            deterministic=runtime.deterministic,
        )
        engine.measures_norms = self.config.trainer.tracking.norms
        return engine

    def _place_data(self) -> dict[str, int]:
        """Places data on the device, where the data sections request it; returns its bytes."""
        data = self.config.task
        if self.config.trainer.overfit_batches is not None:
            return {}  # the few batches of this check stay on the host
        train, validation = data.train_data.cache, data.validation_data.cache
        return place_data(
            self.engine, {"train": (self.train_stream, train), "validation": (self.validation_stream, validation)}
        )

    def train(
        self,
        num_steps: int,
        *,
        new_window: bool = True,
        after_call: Callable[[int], bool] = lambda step: True,
        may_wait: Callable[[], bool] = lambda: True,
        skipper: BadBatchSkipper | None = None,
    ) -> LazyLogs:
        """Trains `num_steps` steps, and returns the window's logs.

        The device may still be computing when it returns; reading the logs waits for it.

        It trains fewer steps where `after_call` or `may_wait` returns False, or where the first pass over the data
        ends, which counts the batches.

        Args:
          num_steps: The number of steps.
          new_window: Whether a window begins; False continues the one that the previous call left open.
          after_call: Called after each compiled call with the total number of steps done; False stops training here.
          may_wait: Polled while the next batch is not available; False stops training here.
          skipper: Trains single steps up to its `until`, checks each, and skips bad batches.

        Raises:
          TrainingError: The training data ended too early.
          BadDataError: A batch is invalid, or cannot be read.
        """
        if self._train_feed is None:
            raise UsageError("this trainer was created to evaluate only", remedy="Trainer(…, train=True)")
        if new_window:
            self.engine.reset("train")
            self._window_start = self.global_step
        self._may_wait, stopped = may_wait, False
        end = self.global_step + num_steps
        report_untouched = self._untouched.begin("train")
        try:
            for step in self._calls(self._train_feed, end, new_window, skipper):
                self.global_step = step
                if stopped := not after_call(step):
                    break
        except UsageError as error:
            if self.global_step == 0:
                raise
            when = f"after step {self.global_step}: "
            problems = [dataclasses.replace(p, reason=when + p.reason) for p in error.problems]
            raise BadDataError([self._in_train_data(problem) for problem in problems]) from error
        ended = self.global_step < end and not stopped and may_wait()
        if ended and not self._set_counted_batches():
            total, stream = self.config.trainer.train_steps, self.train_stream
            once = stream is not None and stream.is_single_pass
            again = "pass what can be read again: this data can be read only once" if once else "repeat the data"
            raise TrainingError(
                f"the training data ended after step {self.global_step}{f' of {total}' if total else ''}",
                remedy=(again, "set {repeat} to true", "lower {steps}"),
                mentions={"repeat": "task.train_data.repeat", "steps": "trainer.train_steps"},
            )
        is_whole = self.global_step == end or ended
        if is_whole:
            report_untouched()
        return self._logs(self._updates_without_effect.watch if is_whole else None)

    def _calls(self, feed: Feed, end: int, new_window: bool, skipper: BadBatchSkipper | None) -> Iterator[int]:
        """Trains up to step `end`, call by call; yields the total number of steps done after each."""
        begin = done = self.global_step
        if skipper is not None:
            for done in skipper.steps(self.engine, feed, end - begin, begin, self.window_logs):
                yield done
            if done < skipper.until:
                return
        if done < end:
            left = self._steps_left() if new_window else None
            yield from (done + more for more in self.engine.calls(feed, end - done, left))

    @property
    def example_inputs(self) -> Any:
        """The features of `example`, without its labels and weights."""
        return unpack(self.example)[0]

    def _in_train_data(self, problem: Problem) -> Problem:
        """Returns a problem with one of the keys of the data section under that section."""
        of_data = problem.key and hasattr(self.config.task.train_data, problem.key)
        return problem.under("task.train_data") if of_data else problem

    def _steps_left(self) -> int | None:
        """Returns how many steps are left to train, as configured; None if that is unknown."""
        config, stream = self.config.trainer, self.train_stream
        total = config.train_steps
        if total is None and config.epochs is not None and stream is not None and stream.batches_per_epoch:
            total = int(config.epochs * stream.batches_per_epoch)
        return None if total is None else max(total - self.global_step, 0)

    def _set_counted_batches(self) -> bool:
        """At the end of a first pass that counts the batches, sets their number; returns whether it was such a pass."""
        stream, feed = self.train_stream, self._train_feed
        if not isinstance(stream, CountedStream) or not stream.is_counting_first_epoch or feed is None:
            return False
        stream.set_batches_per_epoch(int(feed.state()["batch"]))
        if stream.repeat:
            feed.restore(feed.state())
        return True

    def finish_counting(self) -> bool:
        """Sets the number of batches if the first pass, which counts them, has just ended; returns whether it has.

        Waits for the next batch to know.
        """
        counting = (
            self.train_stream is not None and self.train_stream.is_counting_first_epoch and self._train_feed is not None
        )
        return counting and self._train_feed.at_end() and self._set_counted_batches()  # type: ignore[union-attr]

    @property
    def watched_log(self) -> str:
        """The name of the training log that has to stay finite."""
        return "training_loss" if self.engine.watched_log == self.task.loss else self.engine.watched_log

    def window_logs(self) -> LazyLogs:
        """Returns the logs of the open window as it is now; reading them waits for the device."""
        return self._logs()

    def _logs(self, watch: Callable[[int, Logs], None] | None = None) -> LazyLogs:
        """Returns the window's logs; when they are read, `watch` is called with their last step and them."""
        read, step, first = self.engine.read_later("train"), self.global_step, self._window_start
        bad_step, loss, watched = self.engine.read_bad_step_later(), self.task.loss, self.engine.watched_log

        def fetch() -> Logs:
            logs = read()
            if not math.isfinite(logs.get(watched, 0.0)) and (number := bad_step()):
                self._bad_steps[step] = first + number
            if watch is not None:
                watch(step, logs)
            if loss not in logs:
                return logs
            # The loss comes first, under the name that Model Garden's trainer logs it.
            return {"training_loss": logs[loss], **{name: value for name, value in logs.items() if name != loss}}

        return LazyLogs(fetch)

    def bad_step(self, step: int) -> int | None:
        """Returns the first step of the window up to `step` whose `watched_log` is not finite; read its logs first."""
        return self._bad_steps.get(step)

    def evaluate(
        self,
        num_steps: int = -1,
        *,
        before_call: Callable[[int], None] | None = None,
        after_call: Callable[[int], bool] | None = None,
        may_wait: Callable[[], bool] = lambda: True,
        single_batches: bool = False,
    ) -> Logs:
        """Evaluates `num_steps` batches, or with -1 the whole validation set, every sample once.

        Args:
          num_steps: The number of batches.
          before_call: Called before each compiled call with the number of batches done.
          after_call: Called after each call; False ends the evaluation here.
          may_wait: Polled while the next batch is not available.
          single_batches: Whether each batch is a call of its own.

        Raises:
          FeedInterrupted: `may_wait` returned False.
        """
        if self.validation_stream is None:
            raise UsageError("this trainer was created to train only", remedy="Trainer(…, evaluate=True)")
        _require_end(self.validation_stream, num_steps)
        self._may_wait = may_wait
        if self._validation_feed is not None:
            self._validation_feed.restore({"epoch": 0, "batch": 0})  # it may still be reading the stream
        feed = self._feed(self.validation_stream, self.task.aggregates or single_batches, "validation")
        feed.restore({"epoch": 0, "batch": 0})
        self._validation_feed = feed
        report_untouched = self._untouched.begin("validation")
        with self.averaged(), contextlib.closing(feed):
            logs, self.evaluated_batches = self.engine.evaluate(
                feed, num_steps, self.global_step, before_call, after_call, loss_name="validation_loss"
            )
        report_untouched()
        return logs

    @property
    def epoch(self) -> int:
        """Epochs of the training data done so far."""
        if self._train_feed is None or self.train_stream is None:
            return 0
        position = self._train_feed.state()
        return int(position["epoch"]) + int(position["batch"] == self.train_stream.batches_per_epoch)

    @property
    def evaluating(self) -> bool:
        """Whether an evaluation is running."""
        return self._validation_feed is not None and not self._validation_feed.closed

    def epochs_done(self, step: int) -> float | None:
        """Returns the passes over the data after `step` steps, with the fraction of the current one.

        It is counted from the restored position: while a call of many steps runs, that of the data is at its end.
        None if the length of a pass is unknown.
        """
        per_epoch = self.train_stream.batches_per_epoch if self.train_stream is not None else None
        if self._train_feed is None or not per_epoch:
            return None
        restored, position = self._restored
        batches = int(position.get("batch", 0)) + step - restored
        return int(position.get("epoch", 0)) + batches / per_epoch

    @property
    def warmup(self) -> tuple[int, float]:
        """The steps in calls that compiled or were the first ones, and the seconds that these calls took."""
        each = [warmup() for warmup in self._warmups]
        return sum(steps for steps, _ in each), sum(seconds for _, seconds in each)

    @property
    def consumed(self) -> tuple[int, float]:
        """The number of samples that training has read so far, and the seconds it waited for them."""
        return (0, 0.0) if self._train_feed is None else (self._train_feed.samples, self._train_feed.waited)

    def state(self, into: OwnState | None = None, without: Collection[str] = ()) -> tuple[OwnState, dict[str, Any]]:
        """Returns what must resume together: every variable, as this process has it, and the step and data position.

        Args:
          into: Arrays of an earlier call that are no longer needed; their memory is reused.
          without: Keys of variables that are left out, such as frozen ones.
        """
        stream = dict(self._train_feed.state()) if self._train_feed else {}
        return self.engine.own_state(into, without), {"step": self.global_step, "stream": stream}

    def prepare_copies(self, without: Collection[str] = ()) -> None:
        """Prepares the copies of the state that saves will take; does not wait."""
        self.engine.prepare_copies(without)

    def non_finite(self, state: OwnState | None = None) -> list[str]:
        """Returns the keys of the variables that hold NaN or an infinity; see `Engine.non_finite`."""
        return self.engine.non_finite(state)

    def restore(self, state: StoredState, meta: dict[str, Any]) -> None:
        """Restores what `state` returned: strictly for training; for evaluation only, the model's part."""
        base = meta.get(BASE_KEY)
        if self._train_feed is None:
            averaged = {key: array for key, array in with_averages(state).items() if key in state}  # none of a base
            self.engine.load(averaged, EVALUATED, base)
        else:
            self.engine.load(state, None, base)
        self.global_step = self._window_start = meta["step"]
        self._updates_without_effect = SkippedUpdates(self.optimizer, self.global_step)
        if self._train_feed is not None:
            self._train_feed.restore(meta["stream"])
            self._restored = meta["step"], dict(meta["stream"])

    def check(self, state: StoredState, meta: Mapping[str, Any]) -> None:
        """Checks that a state can be restored for training, and changes nothing.

        Raises:
          UsageError: Keys, shapes or types differ.
        """
        self.engine.check(state, base=meta.get(BASE_KEY))

    def push(self) -> None:
        """Copies the state to the Keras objects, where either has changed; does not wait for the device."""
        self.engine.push()

    def pull(self) -> None:
        """Copies back what has changed in the Keras objects."""
        self.engine.pull()

    @contextlib.contextmanager
    def prefetch_paused(self) -> Iterator[None]:
        """Inside the block nothing is prefetched: only user code draws from the global random generators."""
        with contextlib.ExitStack() as stack:
            for feed in (self._train_feed, self._validation_feed):
                if feed is not None:
                    stack.enter_context(feed.paused())
            yield

    def whole_model(self) -> contextlib.AbstractContextManager[None]:
        """Inside the block this process can use the model and its averages alone; all processes enter it."""
        average = find_average(self.optimizer)
        return self.engine.whole_model([] if average is None else [mean for _, mean in average.pairs()])

    @contextlib.contextmanager
    def averaged(self) -> Iterator[None]:
        """Inside the block the model has its averaged weights, if the optimizer keeps an average."""
        average = find_average(self.optimizer)
        if average is None:
            yield
            return
        pairs = average.pairs()
        self.engine.exchange(pairs)
        try:
            yield
        finally:
            self.engine.exchange(pairs)

    def step_by_step(self) -> None:
        """Makes every training step a call of its own, so that `after_call` is called after each."""
        if self.train_stream is not None:
            self._train_feed = self._feed(self.train_stream, single=True)

    def close(self) -> None:
        """Stops prefetching, and copies the state to the Keras objects."""
        if self._train_feed is not None:
            self._train_feed.close()
        self.push()

    def _streams(self, train_dataset: Any, validation_dataset: Any) -> tuple[Stream | None, Stream | None]:
        """Returns the training and the validation stream; None for one that is not needed."""
        data, first = self.config.task, self.config.trainer.overfit_batches
        if first is not None:
            train, validation = keep_first_batches(
                self._stream(data.train_data, train_dataset, True, shuffle=False), first, "trainer.overfit_batches"
            )
            return train if self._trains else None, validation if self._evaluates else None
        return (
            self._stream(data.train_data, train_dataset, True) if self._trains else None,
            self._stream(data.validation_data, validation_dataset, False) if self._evaluates else None,
        )

    def _stream(self, params: Any, dataset: Any, training: bool, shuffle: bool | None = None) -> Stream:
        seed = self.config.runtime.seed if params.seed is None else params.seed
        is_training = training if params.is_training is None else params.is_training
        params = params.replace(is_training=is_training, seed=seed)  # for `build_inputs`
        with _in_section(training):
            source = dataset if dataset is not None else self.task.inputs_for(params)
            return make_stream(source, params, training=training, seed=self.config.runtime.seed, shuffle=shuffle)

    def _feed(self, stream: Stream, single: bool = False, kind: str = "train") -> Feed:
        check = None if self._check_arrays(stream) else functools.partial(self._check, kind == "train")
        return self.engine.feed(stream, check, single, lambda: self._may_wait(), kind)

    def _check_arrays(self, stream: Stream | None) -> bool:
        """Checks data that is in memory, as a whole and once; returns whether it is."""
        arrays = stream.labelled_by if isinstance(stream, MappedStream) else stream
        if not isinstance(arrays, ArrayStream):
            return False
        if id(stream) not in self._checked:
            self._check(stream is self.train_stream, arrays.arrays)
        self._checked.add(id(stream))
        return True

    def _check(self, training: bool, batch: Batch) -> None:
        with _in_section(training):
            self.task.check_batch(batch)


@contextlib.contextmanager
def _in_section(training: bool) -> Iterator[None]:
    """Adds the key of the data section to errors; of several tasks, each names its own section."""
    try:
        yield
    except UsageError as error:
        problems = problems_under("", error)
        section = f"task.{'train' if training else 'validation'}_data"
        raise UsageError([p if p.key.startswith("task.") else p.under(section) for p in problems]) from error


def _first(stream: Stream | None, training: bool) -> Batch | None:
    if stream is None:
        return None
    with _in_section(training):
        try:
            return stream.peek()
        except StopIteration:
            raise UsageError("the dataset is empty, it has no batch at all", remedy="pass some data") from None


def _require_end(stream: Stream, num_steps: int) -> None:
    if num_steps < 0 and stream.never_ends:
        raise UsageError(
            "which means the whole validation set, but its data never ends",
            key="trainer.validation_steps",
            received=num_steps,
            remedy=("do not repeat the data", "set {steps} to a number of batches"),
            mentions={"steps": "trainer.validation_steps"},
        )
