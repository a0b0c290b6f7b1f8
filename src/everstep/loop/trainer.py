"""`Trainer`: the inner loop, `train(num_steps) -> logs` and `evaluate(num_steps) -> logs`, and nothing more.

When to train, evaluate and save is the controller's business; how a step runs, the engine's.
"""

import contextlib
import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import keras

from everstep.config.problem import ConfigError, problems_under
from everstep.data.arrays import ArrayStream
from everstep.data.counted import CountedStream
from everstep.data.limited import hold
from everstep.data.source import make_stream
from everstep.data.stream import Stream
from everstep.engine.backend import create_engine
from everstep.engine.engine import Engine
from everstep.engine.feed import Feed, NobodyWaits
from everstep.engine.variable_names import name_variables
from everstep.errors import TrainingError, UsageError
from everstep.loop.careful import CarefulSteps
from everstep.loop.lazy_logs import LazyLogs
from everstep.loop.skipped_steps import SkippedSteps
from everstep.optim.averaged_state import with_averages
from everstep.optim.ema import find_average
from everstep.task.task import Task
from everstep.types import Batch, Logs, State


class Trainer:
    """Trains and evaluates a task.

        trainer = Trainer(config, task, model, optimizer)
        logs = trainer.train(100)         # {"training_loss": …, "accuracy": …, "learning_rate": …}
        logs = trainer.evaluate(-1)       # {"validation_loss": …, "accuracy": …}

    Args:
      config: An ExperimentConfig; its task's data sections, trainer and runtime are read.
      task: The task.
      model: Its model.
      optimizer: Its optimizer; not needed to evaluate.
      train: Whether it will train.
      evaluate: Whether it will evaluate.
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
        self._counted_from = 0  # the step after which the engine has begun to count
        self._bad_steps: dict[int, int] = {}  # the first bad step of a window, by the window's last
        self._checked: set[int] = set()
        self._warmups: list[Callable[[], tuple[int, float]]] = []  # of each stage's engine
        self.window_open = False  # whether the next step belongs to a window that has begun
        self.after_call: Callable[[int], bool] = lambda step: True
        # Asked again and again while data is waited for; False: training ends at the step reached, and no one waits.
        self.may_wait: Callable[[], bool] = lambda: True
        self.careful: CarefulSteps | None = None  # set where training goes over a bad place again
        self.between_calls: Callable[[], None] = lambda: None  # while it evaluates; may raise
        # Called with the batches done before and after each validation batch, which is then a call of its own.
        self.around_validation: tuple[Callable[[int], None], Callable[[int], bool]] | None = None
        self._trains, self._evaluates = train, evaluate
        self._join(train_dataset, validation_dataset)

    def _join(self, train_dataset: Any, validation_dataset: Any) -> None:
        """Reads the first batches, and builds the engine of the model and the optimizer on their shapes."""
        config = self.config
        self.train_stream, self.validation_stream = self._streams(train_dataset, validation_dataset)
        if self.validation_stream is not None:
            _require_end(self.validation_stream, config.trainer.validation_steps)
        if (average := find_average(self.optimizer)) is not None:
            average.track(self.model)
        name_variables(self.task, self.model, self.optimizer)
        train_batch, validation_batch = _first(self.train_stream, True), _first(self.validation_stream, False)
        self.train_example = train_batch
        self.example = train_batch if validation_batch is None else validation_batch
        self.engine = engine = self._built_engine(train_batch, validation_batch)
        steps, seconds = engine.warmup  # an engine may have served before
        self._warmups.append(lambda: (engine.warmup[0] - steps, engine.warmup[1] - seconds))
        self._skipped = SkippedSteps(self.optimizer, self.global_step)
        self._train_feed = self._feed(self.train_stream) if self.train_stream is not None else None
        self._validation_feed: Feed | None = None  # of the running evaluation, or closed, of the last one

    def _built_engine(self, train_batch: Batch | None, validation_batch: Batch | None) -> Engine:
        """Returns an engine that is built on the shapes of these batches."""
        engine = create_engine(self.task, self.model, self.optimizer, enable_xla=self.config.runtime.enable_xla)
        engine.measures_norms = self.config.trainer.tracking.norms
        engine.build(train_batch, validation_batch)
        return engine

    def train(self, num_steps: int) -> Mapping[str, float]:
        """Trains `num_steps` steps, the rest of the open window or a new one; returns the window's logs.

        The device may still be at work when it returns; looking at the logs waits for it.

        They are fewer where the first pass over the data ends, which was to tell how many batches there are.

        Raises:
          TrainingError: The training data ended before, or something in it is wrong.
        """
        if self._train_feed is None:
            raise UsageError("this trainer was made to evaluate only: Trainer(…, train=True)")
        if not self.window_open:
            self.engine.reset("train")
            self._counted_from = self.global_step
        self._stopped = False
        try:
            done = self._run(self._train_feed, num_steps)
        except UsageError as error:
            if self.global_step == 0:
                raise
            raise TrainingError(f"after step {self.global_step}: {error}") from error
        ended = done < num_steps and not self._stopped and self.may_wait()
        if ended and not self._count_pass():
            raise TrainingError(
                f"the training data ended after step {self.global_step} of {self.config.trainer.train_steps}: repeat "
                "it (dataset.repeat(), or task.train_data.repeat=true) or lower trainer.train_steps"
            )
        self.window_open = done < num_steps and not ended
        return self._logs(self._skipped.watch if done == num_steps or ended else None)

    def _count_pass(self) -> bool:
        """Where the first pass was to tell how many batches there are, it has; returns whether it was."""
        stream, feed = self.train_stream, self._train_feed
        if not isinstance(stream, CountedStream) or not stream.counting or feed is None:
            return False
        stream.count(int(feed.state()["batch"]))
        if stream.repeat:
            feed.restore(feed.state())
        return True

    def at_pass_end(self) -> bool:
        """Whether the first pass, which counts the batches, has just ended; waits for the next batch to find out."""
        counting = self.train_stream is not None and self.train_stream.counting and self._train_feed is not None
        return counting and self._train_feed.at_end() and self._count_pass()  # type: ignore[union-attr]

    @property
    def watched_log(self) -> str:
        """Which of the logs of training has to stay finite."""
        return "training_loss" if self.engine.watched_log == self.task.loss else self.engine.watched_log

    def window_logs(self) -> Mapping[str, float]:
        """Returns the logs of the open window as it is now; looking at them waits for the device."""
        return self._logs()

    def _logs(self, watch: Callable[[int, Logs], None] | None = None) -> Mapping[str, float]:
        """Returns the window's logs; `watch` sees them, with the step that they end at, when somebody looks."""
        read, step, first = self.engine.read_later("train"), self.global_step, self._counted_from
        bad_step = self.engine.read_bad_step_later()

        def fetch() -> Logs:
            logs = read()
            if not math.isfinite(logs.get(self.task.loss, 0.0)) and (number := bad_step()):
                self._bad_steps[step] = first + number
            if watch is not None:
                watch(step, logs)
            return _named(logs, self.task.loss, "training_loss")

        return LazyLogs(fetch)

    def bad_step(self, step: int) -> int | None:
        """Returns the first step with a loss that was not finite, of a window that ends at `step` and was read."""
        return self._bad_steps.get(step)

    def _run(self, feed: Feed, num_steps: int) -> int:
        begin, careful = self.global_step, self.careful
        done = careful.run(self.engine, feed, num_steps, begin, self.window_logs, self._go_on) if careful else 0
        if careful and self.global_step >= careful.until:
            self.careful = None
        if done == num_steps or self._stopped or self.careful:
            return done
        return done + self.engine.run(feed, num_steps - done, lambda more: self._go_on(begin + done + more))

    def evaluate(self, num_steps: int = -1) -> Logs:
        """Evaluates `num_steps` batches, or with -1 the whole validation set, every sample once."""
        if self.validation_stream is None:
            raise UsageError("this trainer was made to train only: Trainer(…, evaluate=True)")
        _require_end(self.validation_stream, num_steps)
        before, after = self.around_validation or (None, None)

        def between_calls(done: int) -> bool:
            self.between_calls()
            return after is None or after(done)

        try:
            feed = self._open_validation(self.validation_stream, self.task.aggregates or after is not None)
            with self.averaged(), contextlib.closing(feed):
                logs, self.evaluated_batches = self.engine.evaluate(
                    feed, num_steps, self.global_step, before, between_calls, loss_name="validation_loss"
                )
        except NobodyWaits:
            self.between_calls()  # says why
            raise
        return logs

    def _open_validation(self, stream: Stream, single: bool) -> Feed:
        """Opens the validation data at its beginning, which the feed of the last evaluation may still be reading."""
        (self._validation_feed or stream).restore({"epoch": 0, "batch": 0})
        self._validation_feed = self._feed(stream, single)
        return self._validation_feed

    @property
    def epoch(self) -> int:
        """Epochs of the training data done so far."""
        if self._train_feed is None or self.train_stream is None:
            return 0
        position = self._train_feed.state()
        return int(position["epoch"]) + int(position["batch"] == self.train_stream.batches_per_epoch)

    @property
    def evaluating(self) -> bool:
        """Whether an evaluation is under way."""
        return self._validation_feed is not None and not self._validation_feed.closed

    @property
    def epochs_done(self) -> float | None:
        """Epochs done so far, with the part of the one under way; None where nobody knows how long one is."""
        per_epoch = self.train_stream.batches_per_epoch if self.train_stream is not None else None
        if self._train_feed is None or not per_epoch:
            return None
        position = self._train_feed.state()
        return int(position["epoch"]) + int(position["batch"]) / per_epoch

    @property
    def warmup(self) -> tuple[int, float]:
        """Steps in calls that compiled or were the first of all, and the seconds that those calls took."""
        each = [warmup() for warmup in self._warmups]
        return sum(steps for steps, _ in each), sum(seconds for _, seconds in each)

    @property
    def consumed(self) -> tuple[int, float]:
        """Samples that training has taken from its data so far, and the seconds that it waited for them."""
        return (0, 0.0) if self._train_feed is None else (self._train_feed.samples, self._train_feed.waited)

    def state(self, into: State | None = None) -> tuple[State, dict[str, Any]]:
        """Returns what must resume together: every variable, and the step and data position.

        Args:
          into: Variables that an earlier call returned and nobody needs any more; their memory is used again.
        """
        stream = dict(self._train_feed.state()) if self._train_feed else {}
        return self.engine.state(into), {"step": self.global_step, "stream": stream}

    def restore(self, state: State, meta: dict[str, Any]) -> None:
        """Continues from what `state` returned; strict where it trains, the model's part where it only evaluates."""
        if self._train_feed is None:
            self.engine.load(with_averages(state), only=("model/", "model.", "task."))
        else:
            self.engine.load(state)
        self.global_step = self._counted_from = meta["step"]
        self._skipped = SkippedSteps(self.optimizer, self.global_step)
        if self._train_feed is not None:
            self._train_feed.restore(meta["stream"])

    @contextlib.contextmanager
    def undisturbed(self) -> Iterator[None]:
        """Inside the block no data is read ahead: user code has the global random generators for itself."""
        with contextlib.ExitStack() as stack:
            for feed in (self._train_feed, self._validation_feed):
                if feed is not None:
                    stack.enter_context(feed.paused())
            yield

    @contextlib.contextmanager
    def averaged(self) -> Iterator[None]:
        """Inside the block the model has its averaged weights, where the optimizer keeps an average of them."""
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
        """Makes every step a call of its own, so that `after_call` sees each."""
        if self.train_stream is not None:
            self._train_feed = self._feed(self.train_stream, single=True)

    def close(self) -> None:
        """Stops reading ahead, and shows the state to the Keras objects."""
        if self._train_feed is not None:
            self._train_feed.close()
        self.engine.push()

    def _go_on(self, step: int) -> bool:
        self.global_step = step
        self._stopped = not self.after_call(step)
        return not self._stopped

    def _streams(self, train_dataset: Any, validation_dataset: Any) -> tuple[Stream | None, Stream | None]:
        """Returns the data to train on and that to evaluate on, each where it is needed."""
        data, held = self.config.task, self.config.trainer.overfit_batches
        if held is not None:
            train, validation = hold(
                self._stream(data.train_data, train_dataset, True, shuffle=False), held, "trainer.overfit_batches"
            )
            return train if self._trains else None, validation if self._evaluates else None
        return (
            self._stream(data.train_data, train_dataset, True) if self._trains else None,
            self._stream(data.validation_data, validation_dataset, False) if self._evaluates else None,
        )

    def _stream(self, params: Any, dataset: Any, training: bool, shuffle: bool | None = None) -> Stream:
        seed = self.config.runtime.seed if params.seed is None else params.seed
        is_training = training if params.is_training is None else params.is_training
        params = params.replace(is_training=is_training, seed=seed)  # so that `build_inputs` knows both
        with _in_section(training):
            source = dataset if dataset is not None else self.task.inputs_for(params)
            return make_stream(source, params, training=training, seed=self.config.runtime.seed, shuffle=shuffle)

    def _feed(self, stream: Stream, single: bool = False) -> Feed:
        if isinstance(stream, ArrayStream):  # all of it can be looked at now, once
            if id(stream) not in self._checked:
                with _in_section(stream is self.train_stream):
                    self.task.check_batch(stream.arrays)
            self._checked.add(id(stream))
            return self.engine.feed(stream, None, single, self._may_wait)
        return self.engine.feed(stream, self.task.check_batch, single, self._may_wait)

    def _may_wait(self) -> bool:
        return self.may_wait()


@contextlib.contextmanager
def _in_section(training: bool) -> Iterator[None]:
    """Says in errors which data they are about, by its keys; of several tasks, each names its own."""
    try:
        yield
    except UsageError as error:
        problems = problems_under("", error)
        section = f"task.{'train' if training else 'validation'}_data"
        raise ConfigError([p if p.path.startswith("task.") else p.under(section) for p in problems]) from error


def _first(stream: Stream | None, training: bool) -> Batch | None:
    if stream is None:
        return None
    with _in_section(training):
        try:
            return stream.peek()
        except StopIteration:
            raise UsageError("the dataset is empty: it has no batch at all; give it data") from None


def _require_end(stream: Stream, num_steps: int) -> None:
    if num_steps < 0 and stream.endless:
        raise UsageError(
            f"trainer.validation_steps: received {num_steps}, the whole validation set, but its data never ends: "
            "set the number of batches, or do not repeat the data"
        )


def _named(logs: Logs, loss: str, name: str) -> Logs:
    """Puts the loss first, under the name the logs of Model Garden's trainer give it."""
    return {name: logs[loss], **{k: v for k, v in logs.items() if k != loss}} if loss in logs else logs
