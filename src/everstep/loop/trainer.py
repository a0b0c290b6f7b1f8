"""`Trainer`: the inner loop, `train(num_steps) -> logs` and `evaluate(num_steps) -> logs`, and nothing more.

When to train, evaluate and save is the controller's business; how a step runs, the engine's.
"""

import contextlib
import dataclasses
import math
from collections.abc import Callable, Iterator
from typing import Any

import keras

from everstep.data.arrays import ArrayStream
from everstep.data.source import make_stream
from everstep.data.stream import Stream
from everstep.data.wrappers import CountedStream, hold
from everstep.engine.backend import create_engine
from everstep.engine.engine import Engine
from everstep.engine.feed import Feed
from everstep.engine.state import name_variables
from everstep.errors import TrainingError, UsageError, problems_under
from everstep.loop.lazy_logs import LazyLogs
from everstep.loop.recovery import BadBatchSkipper, SkippedUpdates
from everstep.task.optim.ema import find_average, with_averages
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
        self.evaluated_batches = 0
        self._may_wait: Callable[[], bool] = lambda: True  # of the call that runs
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
        self._skipped = SkippedUpdates(self.optimizer, self.global_step)
        self._train_feed = self._feed(self.train_stream) if self.train_stream is not None else None
        self._validation_feed: Feed | None = None  # of the running evaluation, or closed, of the last one

    def _built_engine(self, train_batch: Batch | None, validation_batch: Batch | None) -> Engine:
        """Returns an engine that is built on the shapes of these batches."""
        engine = create_engine(self.task, self.model, self.optimizer, enable_xla=self.config.runtime.enable_xla)
        engine.measures_norms = self.config.trainer.tracking.norms
        engine.build(train_batch, validation_batch)
        return engine

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

        The device may still be at work when it returns; reading the logs waits for it.

        There are fewer steps where `after_call` or `may_wait` ends the call, or where the first pass over the data
        ends, which counts the batches.

        Args:
          num_steps: How many steps.
          new_window: Whether a window begins; False continues the one that a call before has left open.
          after_call: Called after each compiled call with the steps done in all; False ends training here.
          may_wait: Polled while the next batch is not there; False ends training here.
          skipper: Checks single steps and skips bad batches, as long as it is needed.

        Raises:
          TrainingError: The training data ended before, or something in it is wrong.
        """
        if self._train_feed is None:
            raise UsageError("this trainer was created to evaluate only", remedy="Trainer(…, train=True)")
        if new_window:
            self.engine.reset("train")
            self._counted_from = self.global_step
        self._may_wait, stopped = may_wait, False

        def after(step: int) -> bool:
            nonlocal stopped
            self.global_step = step
            stopped = not after_call(step)
            return not stopped

        feed, begin, done = self._train_feed, self.global_step, 0
        try:
            if skipper is not None:
                done = skipper.run(self.engine, feed, num_steps, begin, self.window_logs, after)
            if done < num_steps and not stopped and (skipper is None or begin + done >= skipper.until):
                already = done
                done += self.engine.run(feed, num_steps - done, lambda more: after(begin + already + more))
        except UsageError as error:
            if self.global_step == 0:
                raise
            when = f"after step {self.global_step}: "
            raise TrainingError([dataclasses.replace(p, reason=when + p.reason) for p in error.problems]) from error
        ended = done < num_steps and not stopped and may_wait()
        if ended and not self._count_pass():
            total = self.config.trainer.train_steps
            raise TrainingError(
                f"the training data ended after step {self.global_step}{f' of {total}' if total else ''}",
                remedy="repeat it (dataset.repeat(), or {repeat}=true) or lower {steps}",
                mentions={"repeat": "task.train_data.repeat", "steps": "trainer.train_steps"},
            )
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

    def window_logs(self) -> LazyLogs:
        """Returns the logs of the open window as it is now; reading them waits for the device."""
        return self._logs()

    def _logs(self, watch: Callable[[int, Logs], None] | None = None) -> LazyLogs:
        """Returns the window's logs; `watch` is called with them, and with the step that they end at, when read."""
        read, step, first = self.engine.read_later("train"), self.global_step, self._counted_from
        bad_step, loss = self.engine.read_bad_step_later(), self.task.loss

        def fetch() -> Logs:
            logs = read()
            if not math.isfinite(logs.get(loss, 0.0)) and (number := bad_step()):
                self._bad_steps[step] = first + number
            if watch is not None:
                watch(step, logs)
            if loss not in logs:
                return logs
            # The loss comes first, under the name that the logs of Model Garden's trainer give it.
            return {"training_loss": logs[loss], **{name: value for name, value in logs.items() if name != loss}}

        return LazyLogs(fetch)

    def bad_step(self, step: int) -> int | None:
        """Returns the first step with a loss that was not finite, of a window that ends at `step` and was read."""
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
          num_steps: How many batches.
          before_call: Called before each compiled call with the batches done.
          after_call: Called after each; False ends the evaluation here.
          may_wait: Polled while the next batch is not there.
          single_batches: Whether each batch is a call of its own.

        Raises:
          FeedInterrupted: `may_wait` returned False.
        """
        if self.validation_stream is None:
            raise UsageError("this trainer was created to train only", remedy="Trainer(…, evaluate=True)")
        _require_end(self.validation_stream, num_steps)
        self._may_wait = may_wait
        # The feed of the last evaluation may still be reading the stream.
        (self._validation_feed or self.validation_stream).restore({"epoch": 0, "batch": 0})
        feed = self._validation_feed = self._feed(self.validation_stream, self.task.aggregates or single_batches)
        with self.averaged(), contextlib.closing(feed):
            logs, self.evaluated_batches = self.engine.evaluate(
                feed, num_steps, self.global_step, before_call, after_call, loss_name="validation_loss"
            )
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
        self._skipped = SkippedUpdates(self.optimizer, self.global_step)
        if self._train_feed is not None:
            self._train_feed.restore(meta["stream"])

    @contextlib.contextmanager
    def prefetch_paused(self) -> Iterator[None]:
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
        """Makes every training step a call of its own, so that `after_call` is called for each."""
        if self.train_stream is not None:
            self._train_feed = self._feed(self.train_stream, single=True)

    def close(self) -> None:
        """Stops reading ahead, and shows the state to the Keras objects."""
        if self._train_feed is not None:
            self._train_feed.close()
        self.engine.push()

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
            return self.engine.feed(stream, None, single, lambda: self._may_wait())
        return self.engine.feed(stream, self.task.check_batch, single, lambda: self._may_wait())


@contextlib.contextmanager
def _in_section(training: bool) -> Iterator[None]:
    """Says in errors which data they are about, by its keys; of several tasks, each names its own."""
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
            raise UsageError("the dataset is empty: it has no batch at all; give it data") from None


def _require_end(stream: Stream, num_steps: int) -> None:
    if num_steps < 0 and stream.endless:
        raise UsageError(
            "which means the whole validation set, but its data never ends",
            key="trainer.validation_steps",
            received=num_steps,
            remedy="set the number of batches, or do not repeat the data",
        )
