"""`Controller`: the outer loop. When to train, evaluate, save and act.

while step < train_steps:
    train the window          trainer.train
    log it                    tracker.log
    act                       train_actions
    evaluate, act, log        at multiples of the interval, and at the end
    save                      after everything that belongs to the step
"""

import logging
import math
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from everstep.checkpoint.checkpointer import Checkpointer, NoopCheckpointer
from everstep.errors import TrainingError, UsageError
from everstep.loop.lazy_logs import LazyLogs
from everstep.loop.windows import Windows
from everstep.tracking.tracker import NoopTracker, Tracker, plain
from everstep.types import Logs

Action = Callable[[Mapping[str, Any]], None]
"""Called with the logs of a loop or an evaluation; may look at the Keras objects and change them."""

logger = logging.getLogger(__name__)


class Controller:
    """Trains, evaluates, saves and acts, each when it is due.

        controller = Controller(trainer=trainer, evaluator=trainer, steps_per_loop=100, checkpointer=…, tracker=…)
        controller.restore_checkpoint()
        logs = controller.train_and_evaluate(train_steps=1000, eval_interval=500)

    Args:
      trainer: Has `train(num_steps) -> logs` and `global_step`; None to evaluate only.
      evaluator: Has `evaluate(num_steps) -> logs`; None to train only.
      steps_per_loop: The logging window, or a function of the step.
      checkpointer: Where to save and restore.
      checkpoint_interval: Steps between saves; 0 saves only when training is done.
      tracker: Where logs go.
      summary_interval: Log training only at multiples of it; None for every loop.
      train_actions: Run after each loop, before anything is saved.
      eval_actions: Run after each evaluation.
      trained: Called once when the last training step is done, before the closing evaluation.
    """

    def __init__(
        self,
        *,
        trainer: Any = None,
        evaluator: Any = None,
        steps_per_loop: int | Callable[[int], int] = 100,
        checkpointer: Checkpointer | None = None,
        checkpoint_interval: int = 0,
        tracker: Tracker | None = None,
        summary_interval: int | None = None,
        train_actions: Iterable[Action] = (),
        eval_actions: Iterable[Action] = (),
        trained: Callable[[], None] = lambda: None,
    ) -> None:
        self.trainer, self.evaluator = trainer, evaluator
        self.steps_per_loop = steps_per_loop
        self.checkpointer = checkpointer or NoopCheckpointer()
        self.checkpoint_interval = checkpoint_interval
        self.tracker = tracker or NoopTracker()
        self.summary_interval = summary_interval
        self.train_actions, self.eval_actions = list(train_actions), list(eval_actions)
        self._trained = trained
        self.stopped = ""  # why training is to end before its time
        self._target = 0
        self._told: dict[str, Any] = {"reason": "", "target": 0}  # what made an earlier attempt stop on its way
        self._saved_step = 0
        self._warned = False  # that the loss is not finite
        self._unread: deque[LazyLogs] = deque()
        self._window_done = 0.0  # when the last window was over
        self._evaluated: dict[str, Any] = {"step": -1, "logs": {}}

    @property
    def step(self) -> int:
        """Steps done so far."""
        return int((self.trainer or self.evaluator).global_step)

    def stop(self, reason: str) -> None:
        """Ends training after what belongs to the current step; for actions."""
        self.stopped = reason

    # -- modes -----------------------------------------------------------------------------------------------------

    def train(self, steps: int, checkpoint_at_completion: bool = True) -> Logs:
        """Trains until `steps` steps are done in all; returns the last window's logs."""
        return self._train_until(steps, Windows(self.steps_per_loop), save_at_end=checkpoint_at_completion)

    def train_and_evaluate(self, train_steps: int, eval_steps: int = -1, eval_interval: int | None = None) -> Logs:
        """Trains until `train_steps`, evaluating at multiples of `eval_interval` and at the end.

        Returns:
          The logs of the last evaluation.
        """
        self._require("evaluator", "train_and_evaluate")
        windows = Windows(self.steps_per_loop, eval_interval)

        def due() -> bool:
            due = bool(eval_interval and self.step % eval_interval == 0)
            return due or self.step >= train_steps or bool(self.stopped)

        self._train_until(train_steps, windows, due, eval_steps)
        return dict(self._evaluated["logs"])

    def evaluate(self, steps: int = -1) -> Logs:
        """Evaluates once; returns the logs.

        Raises:
          UsageError: `steps` is neither positive nor -1.
        """
        self._require("evaluator", "evaluate")
        if steps < 1 and steps != -1:
            raise UsageError(f"trainer.validation_steps: received {steps}, must be at least 1, or -1 for the whole set")
        begin = time.perf_counter()
        logs = dict(self.evaluator.evaluate(steps) or {})
        logs["eval_seconds"] = round(time.perf_counter() - begin, 3)
        self._act(self.eval_actions, logs)
        self.tracker.log(self.step, logs, "validation")
        self._evaluated = {"step": self.step, "logs": plain(logs)}
        return logs

    def evaluate_continuously(
        self,
        steps: int = -1,
        timeout: float | None = None,
        timeout_fn: Callable[[], bool] = lambda: False,
        poll: float = 1.0,
    ) -> Logs:
        """Evaluates the newest checkpoint each time one appears.

        Ends when `timeout_fn` says so after an evaluation, or when no new checkpoint came for `timeout` seconds:
        the trainer is done or dead.

        Returns:
          The logs of the last evaluation.

        Raises:
          TrainingError: No checkpoint appeared at all.
        """
        self._require("evaluator", "evaluate_continuously")
        seen, since = None, time.monotonic()
        while timeout is None or time.monotonic() - since < timeout:
            newest = self.checkpointer.latest()
            if newest is None or newest == seen:
                time.sleep(poll)
                continue
            try:
                self.restore_checkpoint(newest)
            except (UsageError, FileNotFoundError):
                if newest in self.checkpointer.steps():
                    raise
                continue  # the trainer has pruned it meanwhile; there is a newer one
            self.evaluate(steps)
            self.tracker.flush()
            seen, since = newest, time.monotonic()
            if timeout_fn():
                return dict(self._evaluated["logs"])
        if seen is None:
            raise TrainingError(f"no checkpoint appeared within {timeout} seconds: is the trainer running?")
        logger.warning("no new checkpoint for %s seconds after step %d: giving up on the trainer", timeout, self.step)
        return dict(self._evaluated["logs"])

    # -- checkpoints -----------------------------------------------------------------------------------------------

    def save_checkpoint(self) -> None:
        """Saves now, unless this very step is saved."""
        self._require("trainer", "save_checkpoint")
        if isinstance(self.checkpointer, NoopCheckpointer) or self.checkpointer.latest() == self.step:
            return
        self.tracker.flush()  # what was logged up to a committed step must not be lost
        state, meta = self.trainer.state()
        told = {"reason": self.stopped, "target": self._target}
        self.checkpointer.save(self.step, state, {**meta, "evaluated": self._evaluated, "stopped": told})
        self._saved_step = self.step

    def restore_checkpoint(self, step: int | None = None) -> int | None:
        """Restores a checkpoint, by default the newest; returns its step, or None if there is none."""
        if step is None and self.checkpointer.latest() is None:
            return None
        state, meta = self.checkpointer.restore(step)
        (self.trainer or self.evaluator).restore(state, meta)
        self._evaluated = meta.get("evaluated", self._evaluated)
        self._told = meta.get("stopped", self._told)
        self._saved_step = self.step
        return self.step

    # -- the loop --------------------------------------------------------------------------------------------------

    def _train_until(
        self,
        target: int,
        windows: Windows,
        evaluation_due: Callable[[], bool] = lambda: False,
        eval_steps: int = -1,
        save_at_end: bool = True,
    ) -> Logs:
        self._require("trainer", "train")
        logs: Mapping[str, float] = {}
        self._target = target
        self._is_over(target)
        if evaluation_due() and 0 < self.step != self._evaluated["step"]:
            self.evaluate(eval_steps)  # was due when an earlier attempt ended
        while self.step < target and not self.stopped:
            logs = self._train_window(windows, min(windows.end(self.step), target))
            self._act(self.train_actions, logs)
            ending = self.step >= target or bool(self.stopped)
            if ending:
                self._trained()
            if evaluation_due():
                self._settle()  # the window is over before the evaluation's time begins
                self.evaluate(eval_steps)
            # Saved last: what a checkpoint holds is done, all of it, and is never done again.
            if self._save_due() or (save_at_end and ending):
                self.save_checkpoint()
        self._settle()
        return dict(logs)

    def _is_over(self, target: int) -> bool:
        """Whether nothing is left to train: done, or told to stop on the way there, be it in an earlier attempt."""
        if self._told["reason"] and target <= self._told["target"]:
            self.stopped = self._told["reason"]
        return self.step >= target or bool(self.stopped)

    def _train_window(self, windows: Windows, end: int) -> Mapping[str, float]:
        begin, first = time.perf_counter(), self.step
        self.trainer.window_open = not windows.ends_at(first)
        trained = self.trainer.train(end - first)
        if self.step != end and not self.stopped:
            logger.warning("trainer.train(%d) moved the step from %d to %d", end - first, first, self.step)
        steps, spent = self.step - first, time.perf_counter() - begin
        logs = LazyLogs(lambda: self._timed(dict(trained or {}), steps, begin, spent))
        self._unread.append(logs)
        if len(self._unread) > 2:  # the device is two windows behind at most
            len(self._unread.popleft())
        if not self.summary_interval or self.step % self.summary_interval == 0:
            self.tracker.log(self.step, logs, "train")
        return logs

    def _settle(self) -> None:
        """Waits for the windows handed to the device, in their order: each one's time begins where the last ended."""
        while self._unread:
            len(self._unread.popleft())

    def _timed(self, logs: Logs, steps: int, begin: float, spent: float) -> Logs:
        """Adds the rate; a window begins when it is handed over, or when the one before it is done.

        Handing it over took `spent` seconds, and so did the window at least: tiny ones are over before anyone looks.
        """
        begin, self._window_done = max(begin, self._window_done), time.perf_counter()
        seconds = max(self._window_done - begin, spent, 1e-9)
        if not self._warned and not math.isfinite(logs.get("training_loss", 0.0)):
            self._warned = True
            logger.warning("the training loss is %s", logs["training_loss"])
        return {**logs, "steps_per_second": steps / seconds}

    def _save_due(self) -> bool:
        interval = self.checkpoint_interval
        return bool(interval) and self.step // interval > self._saved_step // interval

    def _act(self, actions: list[Action], logs: Mapping[str, float]) -> None:
        if not actions:
            return
        engine = getattr(self.trainer or self.evaluator, "engine", None)
        if engine is not None:
            engine.push()
        for action in actions:
            action(logs)
        if engine is not None:
            engine.pull()

    def _require(self, attribute: str, method: str) -> None:
        if getattr(self, attribute) is None:
            raise UsageError(f"Controller.{method} needs a {attribute}: Controller({attribute}=…)")
