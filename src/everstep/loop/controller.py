"""`Controller`: the outer loop. When to train, evaluate, save and act.

while step < train_steps:
    train the window          trainer.train
    log it                    tracker.log
    look at logs and state    where anything of the following is due
    act                       train_actions
    evaluate, act, log        at multiples of the interval, and at the end; there the state is saved before, too
    save                      after everything that belongs to the step

Whoever asks the run to end is heard between two calls of the engine: the state is saved as it is, in the middle of a
window or of its closing, and nothing more is done. The next attempt does the rest.
"""

import contextlib
import logging
import os
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from everstep.checkpoint.checkpointer import Checkpointer, SaveError
from everstep.errors import TrainingError, UsageError
from everstep.loop.acting import Action as Action
from everstep.loop.acting import act
from everstep.loop.callback_state import CallbackState, remembering
from everstep.loop.careful import CarefulSteps
from everstep.loop.extra_state import ExtraState
from everstep.loop.following import follow
from everstep.loop.pending_logs import PendingLogs
from everstep.loop.plain_trainer import joined
from everstep.loop.plan import Plan
from everstep.loop.random_state import RandomState
from everstep.loop.recovery import Recovery
from everstep.loop.saver import Saver
from everstep.loop.windows import Windows
from everstep.loop.without_trace import without_trace
from everstep.tracking.tensorboard import TensorBoardTracker
from everstep.tracking.tracker import NoopTracker, Tracker, plain
from everstep.types import Logs, State

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
      checkpoint_interval: Steps between saves; 0 saves only when training is done, or asked to end.
      checkpoint_seconds: Save also after so many seconds without a save.
      save_failure: What to do when a save fails: `stop`, or `continue`.
      tracker: Where logs go.
      summary_interval: Log training only at multiples of it; None for every loop.
      train_actions: Run after each loop, before anything is saved.
      eval_actions: Run after each evaluation.
      trained: Called once when the last training step is done, before the closing evaluation.
      recovery: What to do when the loss or the state goes bad; by default, train on without saving.
      asked: Returns what to raise, when the state is saved, once somebody has asked the run to end.
      went_back: Called with the number of steps that will be done again, when training goes back.
      global_step: For objects without one: the variable that counts their steps, such as `optimizer.iterations`.
      strategy: For objects that only have `train` and `evaluate`: the strategy in whose scope these are called.
      summary_dir: In place of a tracker: where TensorBoard events of training go.
      eval_summary_dir: Where those of evaluations go; None for `validation` in `summary_dir`.
      orbit: What else orbit's Controller takes: `checkpoint_manager`, another name for `checkpointer`;
        `enable_async_checkpointing`, which is always done; summary managers are refused.
    """

    def __init__(
        self,
        *,
        trainer: Any = None,
        evaluator: Any = None,
        steps_per_loop: int | Callable[[int], int] = 100,
        checkpointer: Checkpointer | None = None,
        checkpoint_interval: int = 0,
        checkpoint_seconds: float | None = None,
        save_failure: Any = "stop",
        tracker: Tracker | None = None,
        summary_interval: int | None = None,
        train_actions: Iterable[Action] = (),
        eval_actions: Iterable[Action] = (),
        trained: Callable[[], None] = lambda: None,
        recovery: Recovery | None = None,
        asked: Callable[[], BaseException | None] = lambda: None,
        went_back: Callable[[int], None] = lambda steps: None,
        global_step: Any = None,
        strategy: Any = None,
        summary_dir: str | os.PathLike[str] | None = None,
        eval_summary_dir: str | os.PathLike[str] | None = None,
        **orbit: Any,
    ) -> None:
        checkpointer = _orbit_checkpointer(checkpointer, orbit)
        tracker = _orbit_tracker(tracker, summary_dir, eval_summary_dir)
        if trainer is None and evaluator is None:
            raise UsageError("Controller() has nothing to do: pass a trainer, an evaluator, or both")
        self.trainer, self.evaluator = joined(trainer, evaluator, global_step, strategy)
        self.steps_per_loop = steps_per_loop
        self.tracker = tracker or NoopTracker()
        self.summary_interval = summary_interval
        self.train_actions, self.eval_actions = list(train_actions), list(eval_actions)
        actions = CallbackState(remembering([*self.train_actions, *self.eval_actions]), "actions")
        parts: list[ExtraState] = [actions, RandomState()]
        self.saver = Saver(checkpointer, checkpoint_interval, checkpoint_seconds, save_failure, parts)
        self.recovery = recovery or Recovery()
        self._trained, self._asked, self._went_back = trained, asked, went_back
        self.stopped = ""  # why training is to end before its time
        self._target = 0
        self._early_step = -1  # one that was saved before everything that belongs to it was done
        self._told: dict[str, Any] = {"reason": "", "target": 0}  # what made an earlier attempt stop on its way
        self._unclosed = False  # whether what belongs to the end of the last window is still to be done
        self._unsaved = ""  # why the last state was not saved
        self._pending = PendingLogs(self._watch)
        self._evaluated: dict[str, Any] = {"step": -1, "logs": {}}

    @property
    def step(self) -> int:
        """Steps done so far."""
        return int((self.trainer or self.evaluator).global_step)

    @property
    def last_evaluation(self) -> Logs:
        """The logs of the last evaluation."""
        return dict(self._evaluated["logs"])

    @property
    def training_time(self) -> tuple[int, float]:
        """Steps that this controller has trained, and the seconds in which it did: no evaluation, no save counts."""
        return self._pending.steps, self._pending.seconds

    @property
    def checkpointer(self) -> Checkpointer:
        """Where states are kept."""
        return self.saver.checkpointer

    def stop(self, reason: str) -> None:
        """Ends training after what belongs to the current step; for actions."""
        self.stopped = reason

    # -- modes -----------------------------------------------------------------------------------------------------

    def train(self, steps: int, checkpoint_at_completion: bool = True) -> Logs:
        """Trains until `steps` steps are done in all; returns the last window's logs."""
        return self._carry_out(Plan(steps, Windows(self.steps_per_loop), save_at_end=checkpoint_at_completion))

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

        self._carry_out(Plan(train_steps, windows, due, eval_steps))
        return dict(self._evaluated["logs"])

    def evaluate(self, steps: int = -1) -> Logs:
        """Evaluates once; returns the logs.

        Raises:
          UsageError: `steps` is neither positive nor -1.
        """
        self._require("evaluator", "evaluate")
        if steps < 1 and steps != -1:
            raise UsageError(f"trainer.validation_steps: received {steps}, must be at least 1, or -1 for the whole set")
        self.evaluator.between_calls, self.evaluator.may_wait = self._leave_if_asked, self._may_wait
        begin = time.perf_counter()
        try:
            logs = dict(self.evaluator.evaluate(steps) or {})
        except Exception:
            self._keep_trained()
            raise
        logs["eval_seconds"] = round(time.perf_counter() - begin, 3)
        act(self.eval_actions, logs, self.trainer or self.evaluator)
        self.tracker.log(self.step, logs, "validation")
        self._evaluated = {"step": self.step, "logs": plain(logs)}
        return logs

    def try_evaluation(self, steps: int) -> int:
        """Evaluates some batches to see whether it works, and leaves no trace; returns how many there were."""
        self._require("evaluator", "try_evaluation")
        self.evaluator.between_calls, self.evaluator.may_wait = self._leave_if_asked, self._may_wait
        with without_trace(self.evaluator):
            self.evaluator.evaluate(steps)
        return int(getattr(self.evaluator, "evaluated_batches", steps))

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
        return follow(self, steps, timeout, timeout_fn, poll)

    # -- checkpoints -----------------------------------------------------------------------------------------------

    def save_checkpoint(self) -> None:
        """Saves now, unless this very step is saved; a state that is not finite never is."""
        self._save(early=False)

    def _save(self, early: bool) -> None:
        """Saves; `early` is a state to which more belongs: the next attempt does that, and saves the step again."""
        self._require("trainer", "save_checkpoint")
        again = self._early_step == self.step and not early
        if self.saver.is_off or (self.checkpointer.latest() == self.step and not again):
            return
        self.tracker.flush()  # what was logged up to a committed step must not be lost
        meta = {
            "evaluated": self._evaluated,
            "stopped": {"reason": self.stopped, "target": self._target},
            "unclosed": self._unclosed,
            "early": early,
            "recovery": self.recovery.state(self._careful_until()),
        }
        metrics = self._evaluated["logs"] if self._evaluated["step"] == self.step else {}
        judge = self.recovery.judge_state
        self._unsaved = self.saver.save(self.trainer, meta, metrics, judge, self._parts(), replace=again)
        self._early_step = self.step if early else -1
        if self._unsaved:
            self.recovery.alarm = self._unsaved

    def _keep_trained(self) -> None:
        """Saves what was trained, where its evaluation has failed: the next attempt evaluates it."""
        if self.trainer is None or not self.step:
            return
        with contextlib.suppress(SaveError):  # why the evaluation failed counts more
            self._save(early=True)
            self.checkpointer.wait()

    def restore_checkpoint(self, step: int | None = None) -> int | None:
        """Restores a checkpoint, by default the newest; returns its step, or None if there is none."""
        if step is None and self.checkpointer.latest() is None:
            return None
        meta = self.saver.restore(self.trainer or self.evaluator, self.trainer is not None, step)
        self._evaluated = meta.get("evaluated", self._evaluated)
        self._told = meta.get("stopped", self._told)
        self._unclosed = meta.get("unclosed", False)
        self._early_step = self.step if meta.get("early") else -1
        self._take_care(self.recovery.restore(meta.get("recovery", {})))
        return self.step

    def _careful_until(self) -> int:
        careful = getattr(self.trainer, "careful", None)
        return careful.until if careful else 0

    def _take_care(self, until: int) -> None:
        """Goes on step by step up to a step, past what went wrong there."""
        if self.trainer is not None and self.step < until:
            self.trainer.careful = CarefulSteps(self.recovery, until)

    def _parts(self) -> tuple[State, dict[str, Any]]:
        return self.saver.collect(self.trainer)

    def refuse_fewer(self, train_steps: int, asked: str) -> None:
        """Refuses to end before the step that the restored run is at: what it has learned since cannot be undone.

        Args:
          train_steps: Where training is to end.
          asked: What the user said, in the user's words: `trainer.epochs: received 3`.

        Raises:
          UsageError: The run is beyond that step.
        """
        if self.step > train_steps:
            raise UsageError(
                f"{asked}, but this run has trained {self.step} steps already: ask for {self.step} steps or more, or "
                "start a new run"
            )

    # -- the loop --------------------------------------------------------------------------------------------------

    def _carry_out(self, plan: Plan) -> Logs:
        self._require("trainer", "train")
        self._target = plan.target
        self.trainer.may_wait = self._may_wait
        over = self._is_over(plan.target)
        self._begin()
        try:
            logs = self._finish_earlier(plan, over)
            while not self._is_done(plan.target):
                logs = self._train_window(plan.windows, min(plan.windows.end(self.step), plan.target))
                self._leave_if_asked()
                self._close(plan, logs)
            self._pending.settle()
            self.checkpointer.wait()
        except SystemExit:
            self._save_on_the_way_out()
            raise
        if self._unsaved:
            raise TrainingError(f"training is done, but its end is not saved: {self._unsaved}")
        return dict(logs)

    def _begin(self) -> None:
        """Does what comes before the first step of an attempt."""
        self.saver.put_back()
        if self.step or self.saver.is_off or self.checkpointer.latest() is not None:
            return
        if self.recovery.max_trials > 0:
            self.save_checkpoint()  # there must be a state to go back to
            self.checkpointer.wait()
        else:
            self.recovery.judge_state(0, self.trainer.state()[0])  # what is infinite now is meant to be

    def _finish_earlier(self, plan: Plan, over: bool) -> Mapping[str, float]:
        """Does what the attempt before left undone at its last step; returns the logs of that, if any."""
        if self._unclosed and (plan.windows.ends_at(self.step) or over):
            logs = self._pending.add(self.step, self.trainer.window_logs(), 0, time.perf_counter(), 0.0)
            self._close(plan, logs)
            return logs
        self._unclosed = False
        if plan.evaluation_due() and 0 < self.step != self._evaluated["step"]:
            if over:
                self._trained()
            self.evaluate(plan.eval_steps)
            if self._early_step == self.step:
                self.save_checkpoint()
        return {}

    def _is_done(self, target: int) -> bool:
        """Whether nothing is left to train; goes back first where something has gone wrong."""
        self._leave_if_asked()
        if self.step >= target or self.stopped:
            self._pending.settle()
        if self.recovery.alarm and self.recovery.max_trials >= 0:
            self._go_back()
        return self.step >= target or bool(self.stopped)

    def _close(self, plan: Plan, logs: Mapping[str, float]) -> None:
        """Does what belongs to the end of a window: looks, acts, evaluates, saves; no more if something is wrong."""
        if not self.summary_interval or self.step % self.summary_interval == 0:
            self.tracker.log(self.step, logs, "train")
        if self._is_bad(plan):
            return
        reason = self.stopped
        act(self.train_actions, logs, self.trainer)
        self._unclosed = False
        if self.stopped != reason and self._is_bad(plan):  # more is due than before the actions
            return
        ending, evaluating, saving = self._due(plan)
        if ending:
            self._trained()
        if evaluating:
            if ending and plan.save_at_end:
                self._save(early=True)  # the evaluation is user code: should it fail, the training is not lost
            self.evaluate(plan.eval_steps)
            saving = saving or (plan.save_at_end and bool(self.stopped))  # an action may just have said so
        # Saved last: what a checkpoint holds is done, all of it, and is never done again.
        if saving:
            self.save_checkpoint()

    def _due(self, plan: Plan) -> tuple[bool, bool, bool]:
        """Returns whether training ends with this window, whether it is evaluated, and whether it is saved."""
        ending = self.step >= plan.target or bool(self.stopped)
        saving = self.saver.is_due(self.step) or (plan.save_at_end and ending) or self._early_step == self.step
        return ending, plan.evaluation_due(), saving

    def _is_bad(self, plan: Plan) -> bool:
        """Looks at what is about to be acted on; returns whether that is a reason to go back, or to stop.

        Only where something is due it waits for the device; a save looks at the state by itself.
        """
        ending, evaluating, saving = self._due(plan)
        due, watching = ending or evaluating or saving, self.recovery.max_trials >= 0
        acting = watching and bool(self.train_actions)
        if due or acting:
            self._pending.settle()
        if watching and (evaluating or (acting and due)) and not self.saver.is_off:
            self.recovery.watch_state(self.step, self.trainer.state()[0])
        return watching and (due or acting) and bool(self.recovery.alarm)

    def _go_back(self) -> None:
        """Goes back to the last good state, and from there step by step past what went wrong."""
        reached = max(self.step, self._careful_until())
        # All that is to be said of the steps so far is heard before: said later, it would be taken for new.
        self._pending.settle()
        self.tracker.flush()
        computed = self.step
        self.checkpointer.wait()
        self.recovery.try_again(self.checkpointer.latest())
        self.restore_checkpoint()
        self.saver.put_back()
        self.stopped, self._unsaved = "", ""
        self._went_back(computed - self.step)
        self._take_care(reached)
        self.tracker.start(self.step)

    def _watch(self, step: int, logs: Logs) -> None:
        """Looks at the logs of a window that ends at `step`; where the trainer knows the very step, that is named."""
        bad_step = getattr(self.trainer, "bad_step", lambda step: None)
        self.recovery.watch(bad_step(step) or step, logs)

    def _may_wait(self) -> bool:
        """Whether data is still waited for: not by a run that is to end."""
        return self._asked() is None

    def _leave_if_asked(self) -> None:
        leaving = self._asked()
        if leaving is not None:
            raise leaving

    def _save_on_the_way_out(self) -> None:
        """Saves for the next attempt, if the run was asked to end and has something good to save."""
        if self._asked() is None:
            return
        self._pending.settle()
        if self.recovery.alarm and self.recovery.max_trials >= 0:
            logger.warning("the state of step %d is not saved: %s", self.step, self.recovery.alarm)
            return
        try:
            self.checkpointer.wait()
        except SaveError as error:  # of an earlier step; this one may do better
            logger.error("%s", error)
        self._save(early=True)
        self.checkpointer.wait()

    def _is_over(self, target: int) -> bool:
        """Whether nothing is left to train: done, or told to stop on the way there, be it in an earlier attempt."""
        if self._told["reason"] and target <= self._told["target"]:
            self.stopped = self._told["reason"]
        return self.step >= target or bool(self.stopped)

    def _train_window(self, windows: Windows, end: int) -> Mapping[str, float]:
        begin, first = time.perf_counter(), self.step
        self.trainer.window_open = not windows.ends_at(first)
        self._unclosed = False
        trained = self.trainer.train(end - first)
        self._unclosed = self.step == end
        if self.step != end and not self.stopped and self._asked() is None:
            logger.warning("trainer.train(%d) moved the step from %d to %d", end - first, first, self.step)
        return self._pending.add(self.step, trained, self.step - first, begin, time.perf_counter() - begin)

    def _require(self, attribute: str, method: str) -> None:
        if getattr(self, attribute) is None:
            raise UsageError(f"Controller.{method} needs a {attribute}: Controller({attribute}=…)")


def _orbit_checkpointer(checkpointer: Checkpointer | None, orbit: dict[str, Any]) -> Checkpointer | None:
    """Returns where to save, by either name.

    Raises:
      UsageError: Something among orbit's other arguments is not offered, or unknown.
    """
    orbit.pop("enable_async_checkpointing", None)  # checkpoints are always written in the background
    for name in ("summary_manager", "eval_summary_manager"):
        if orbit.pop(name, None) is not None:
            raise UsageError(
                f"Controller({name}=…) is not offered: pass summary_dir=…, or a tracker of your own, tracker=…"
            )
    manager = orbit.pop("checkpoint_manager", None)
    if orbit:
        raise TypeError(f"Controller() got an unexpected keyword argument {next(iter(orbit))!r}")
    if manager is None:
        return checkpointer
    if checkpointer is not None:
        raise UsageError("Controller(): checkpoint_manager is another name for checkpointer: pass one of them")
    if not isinstance(manager, Checkpointer):
        raise UsageError(
            f"Controller(checkpoint_manager=…): received a {type(manager).__name__}, expected a Checkpointer, such as "
            "everstep.checkpoint.orbax.OrbaxCheckpointer(directory)"
        )
    return manager


def _orbit_tracker(tracker: Tracker | None, summary_dir: Any, eval_summary_dir: Any) -> Tracker | None:
    if summary_dir is None and eval_summary_dir is None:
        return tracker
    if tracker is not None:
        raise UsageError("Controller(): summary_dir makes a tracker, and tracker is one: pass one of them")
    folder = os.path.abspath(summary_dir if summary_dir is not None else eval_summary_dir)
    return TensorBoardTracker(
        folder,
        validation_subdir="validation" if eval_summary_dir is None else os.path.abspath(eval_summary_dir),
        train_subdir=".",
    )
