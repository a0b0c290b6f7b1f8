"""`Controller`: the outer loop. It decides when to train, evaluate, save and act.

while step < target and not stopped:
    train the window          trainer.train
    finish the window:
        check                 logs and state, where anything of the following is due
        log                   tracker.log
        act                   hooks
        evaluate              at multiples of the interval, and at the end; at the end the state is saved before, too
        save                  last, after everything that belongs to the step

A window is the `steps_per_loop` steps between two logs.

A requested stop (a signal, a preemption notice) takes effect between two compiled calls: its exception is raised, and
while the loop leaves, `_save_before_exit` saves the state as it is, in the middle of a window or while one is being
finished. The next attempt does the rest.
"""

import contextlib
import dataclasses
import enum
import logging
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from everstep.checkpoint import Checkpointer, SaveError
from everstep.engine import FeedInterrupted
from everstep.errors import TrainingError, UsageError
from everstep.gang import current_gang
from everstep.loop import random_state
from everstep.loop.hooks import Hook, StatePart
from everstep.loop.inner_loop import InnerLoop
from everstep.loop.lazy_logs import PendingLogs
from everstep.loop.recovery import BadBatchSkipper, Recovery
from everstep.loop.saver import PartStates, Saver
from everstep.loop.schedule import Schedule, StepSchedule, warn_of_data_end
from everstep.private_names import refuse_private_names
from everstep.tracking import NoopTracker, Tracker, plain
from everstep.types import Logs, OwnState

logger = logging.getLogger(__name__)


class Phase(enum.StrEnum):
    """The progress of the current window.

    `Controller.progress.phase` is that of now. A checkpoint contains the phase in which its step was saved: that of
    now, or FINISHED for a save that is itself all that was left to do.
    """

    OPEN = "open"
    """Steps are left to train."""
    TRAINED = "trained"
    """All steps are done; logging is pending, and what hooks do at the end of a window."""
    ACTED = "acted"
    """Logged and acted on; the evaluation or the save may be pending."""
    FINISHED = "finished"
    """Everything that belongs to the window is done."""


@dataclasses.dataclass
class LoopProgress:
    """The state of the loop, saved in every checkpoint under the key `window`.

    Attributes:
      phase: The progress of the window that contains the current step, or ends at it.
      stopped: Why training was stopped before its target; empty if it was not.
      target: The step at which training ends.
    """

    phase: Phase = Phase.FINISHED
    stopped: str = ""
    target: int = 0

    @classmethod
    def from_meta(cls, meta: Mapping[str, Any]) -> "LoopProgress":
        """Returns the progress at which a checkpoint was saved; checkpoints of older versions have other keys."""
        if "window" in meta:
            saved = meta["window"]
            return cls(Phase(saved["phase"]), saved["stopped"], saved["target"])
        phase = Phase.TRAINED if meta.get("unclosed") else Phase.OPEN if meta.get("early") else Phase.FINISHED
        stopped = meta.get("stopped", {})
        return cls(phase, stopped.get("reason", ""), stopped.get("target", 0))


@dataclasses.dataclass(frozen=True)
class _LoopOptions:
    """What one call of `train` or `train_and_evaluate` does.

    Attributes:
      schedule: Where windows end, and what is due there.
      evaluates: Whether to evaluate where the schedule requests it.
      eval_steps: Batches of an evaluation, -1 for all.
      save_at_end: Whether to save when training is done; where it is evaluated, it always is.
    """

    schedule: Schedule
    evaluates: bool = False
    eval_steps: int = -1
    save_at_end: bool = True


class Controller:
    """Trains, evaluates, saves and acts when each is due.

        controller = Controller(trainer=trainer, evaluator=trainer, steps_per_loop=100, checkpointer=…, tracker=…)
        controller.restore_checkpoint()
        logs = controller.train_and_evaluate(train_steps=1000, eval_interval=500)

    Args:
      trainer: Trains, such as a `Trainer`; None to evaluate only.
      evaluator: Evaluates, such as the same `Trainer`; None to train only.
      steps_per_loop: The logging window, or a function of the step.
      checkpointer: Where to save and restore.
      checkpoint_interval: Steps between saves; 0 saves only when training is done, or a stop is requested.
      checkpoint_seconds: Save also after so many seconds without a save.
      save_failure: What to do when a save fails: `stop`, or `continue`; the last save of all must succeed.
      tracker: Where logs go.
      summary_interval: Log training only at multiples of it; None for every window.
      hooks: All who take part, see `everstep.loop.hooks`; called in their order.
      schedule: Where windows end and what is due there, in place of `steps_per_loop` and the intervals of a call.
      recovery: What to do when training diverges; by default, continue without saving.
      stop_requested: Returns a `SystemExit`, such as `run.signals.Interrupted`, once a stop is requested, else None. It
        is raised, and the loop saves as it leaves. No other exception makes the loop save.
      stop_agreed: Where several processes train together: the same, but all of them call it at the same points, and
        it returns on each of them what was requested of any. By default `stop_requested`.
      request_stop: Called with a reason: `stop_requested` then returns its exception. None where nobody can ask so.

    Attributes:
      progress: The progress of the current window, and why training was stopped.
      request_stop: For hooks: interrupts the run as a signal does, and the next attempt continues; see `stop`.
    """

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        refuse_private_names(cls)

    def __init__(
        self,
        *,
        trainer: InnerLoop | None = None,
        evaluator: InnerLoop | None = None,
        steps_per_loop: int | Callable[[int], int] = 100,
        checkpointer: Checkpointer | None = None,
        checkpoint_interval: int = 0,
        checkpoint_seconds: float | None = None,
        save_failure: Any = "stop",
        tracker: Tracker | None = None,
        summary_interval: int | None = None,
        hooks: Iterable[Hook] = (),
        schedule: Schedule | None = None,
        recovery: Recovery | None = None,
        stop_requested: Callable[[], SystemExit | None] = lambda: None,
        stop_agreed: Callable[[], SystemExit | None] | None = None,
        request_stop: Callable[[str], None] | None = None,
    ) -> None:
        if trainer is None and evaluator is None:
            raise UsageError("has nothing to do", key="Controller()", remedy="pass a trainer, an evaluator, or both")
        self.tracker = tracker or NoopTracker()
        # Both may have more than an `InnerLoop`, which hooks of a run use: an engine, streams.
        self.trainer: Any = trainer
        self.evaluator: Any = evaluator
        self._inner_loop: InnerLoop = trainer or evaluator  # type: ignore[assignment]
        self.steps_per_loop, self.schedule = steps_per_loop, schedule
        self.summary_interval = summary_interval
        self.hooks = list(hooks)
        # The order in which they are restored. Random numbers last: restoring may draw some.
        parts: list[StatePart] = [*self.hooks, random_state.RandomState()]
        self.saver = Saver(checkpointer, checkpoint_interval, checkpoint_seconds, save_failure, parts)
        self.recovery = recovery or Recovery(watched=self._inner_loop.watched_log)
        self.progress = LoopProgress()
        self._saved_phase = Phase.FINISHED  # in which `saver.step` was saved
        self._stop_requested, self._stop_agreed = stop_requested, stop_agreed or stop_requested
        self.request_stop = request_stop
        self._skipper: BadBatchSkipper | None = None  # while steps that diverged before are trained again
        self._pending = PendingLogs(self._watch)
        self._evaluated: dict[str, Any] = {"step": -1, "logs": {}}
        self._parts_before_evaluation: PartStates | None = None
        for hook in self.hooks:
            hook.setup(self)

    @property
    def step(self) -> int:
        """Steps done so far."""
        return int(self._inner_loop.global_step)

    @property
    def last_evaluation(self) -> Logs:
        """The logs of the newest evaluation, also of one that an earlier attempt did."""
        return dict(self._evaluated["logs"])

    @property
    def training_time(self) -> tuple[int, float]:
        """The number of steps trained by this controller, and the seconds they took without evaluations and saves."""
        return self._pending.steps, self._pending.seconds

    @property
    def checkpointer(self) -> Checkpointer:
        """Writes and reads the checkpoints of the run; one that does nothing where the run saves none."""
        return self.saver.checkpointer

    @property
    def stopped(self) -> str:
        """Why training was stopped before its target; empty if it was not."""
        return self.progress.stopped

    def stop(self, reason: str) -> None:
        """Ends training after the current compiled call; its window is then finished as the last one.

        It is done for good: a resumed run stays stopped, until its target is raised. `request_stop` interrupts it.
        """
        self.progress.stopped = reason

    @contextlib.contextmanager
    def synced(self) -> Iterator[None]:
        """Inside the block the Keras objects have the current state; after it, their changes are copied back."""
        with self._inner_loop.prefetch_paused():
            self._inner_loop.push()
            yield
            self._inner_loop.pull()

    @property
    def _acts(self) -> bool:
        """Whether a hook acts after each window."""
        return any(hook.acts for hook in self.hooks)

    # -- modes -----------------------------------------------------------------------------------------------------

    def train(self, steps: int | None, checkpoint_at_completion: bool = True) -> Logs:
        """Trains until `steps` steps are done in all; returns the last window's logs."""
        schedule = self.schedule or StepSchedule(self.steps_per_loop)
        return self._run_loop(_LoopOptions(schedule, save_at_end=checkpoint_at_completion), steps)

    def train_and_evaluate(
        self, train_steps: int | None, eval_steps: int = -1, eval_interval: int | None = None
    ) -> Logs:
        """Trains until `train_steps`, evaluating at multiples of `eval_interval` and at the end.

        Returns:
          The logs of the last evaluation.
        """
        self._require("evaluator", "train_and_evaluate")
        schedule = self.schedule or StepSchedule(self.steps_per_loop, eval_interval)
        self._run_loop(_LoopOptions(schedule, evaluates=True, eval_steps=eval_steps), train_steps)
        return self.last_evaluation

    # -- the loop --------------------------------------------------------------------------------------------------

    def _run_loop(self, options: _LoopOptions, steps: int | None) -> Logs:
        self._require("trainer", "train")
        target = options.schedule.target(steps)
        if target > self.progress.target:
            self.progress.stopped = ""  # it was stopped before an earlier target
        self.progress.target = target
        try:
            logs = self._train_windows(options)
        except BaseException as error:
            self._notify("on_exit", error)
            raise
        self._notify("on_exit", None)
        return dict(logs)

    def _train_windows(self, options: _LoopOptions) -> Mapping[str, float]:
        """Trains and finishes window after window; see the first lines of this file."""
        self._begin()
        try:
            logs = self._finish_restored_window(options)
            while self._prepare_next_window(options):
                logs = self._train_window(options)
                self._raise_if_stop_requested()
                self._finish_window(options, logs)
            self.saver.require_saved(self.step)
        except SystemExit:
            self._save_before_exit()
            raise
        if self.saver.refused:
            raise TrainingError(f"training is done, but its last state is not saved: {self.saver.refused}")
        return logs

    def _begin(self) -> None:
        """Notifies the hooks, restores their state over what they reset, and saves an initial state to roll back to."""
        self._notify("on_train_begin")
        self.saver.restore_parts()
        self._notify("on_ready")
        self.saver.prepare(self.trainer)
        if self.step or self.saver.is_disabled or self.checkpointer.latest() is not None:
            return
        self.recovery.remember_initial_infinities(self.trainer.non_finite())  # before the save, which records them
        if self.recovery.rolls_back:
            self.save_checkpoint()  # there must be a state to roll back to
            self.saver.wait()

    def _finish_restored_window(self, options: _LoopOptions) -> Mapping[str, float]:
        """Finishes what the previous attempt left pending at its last step; returns the logs of that window, if any."""
        ending = self.is_ending
        if self.progress.phase is Phase.TRAINED and (options.schedule.is_window_end(self.step) or ending):
            logs = self._pending.add(self.step, self.trainer.window_logs(), 0, time.perf_counter(), 0.0)
            self._finish_window(options, logs)
            return logs
        if self._evaluation_due(options) and not self._is_evaluated:
            if ending:
                self._notify("on_last_step", self.step)
            self.evaluate(options.eval_steps)
            if self._is_saved_unfinished:
                self.save_checkpoint()
            self.progress.phase = Phase.FINISHED
        return {}

    @property
    def _is_evaluated(self) -> bool:
        """Whether the current step was evaluated, maybe by an earlier attempt; step 0 needs no evaluation."""
        return self.step in (0, self._evaluated["step"])

    @property
    def _is_saved_unfinished(self) -> bool:
        """Whether the current step was saved before everything that belongs to it was done."""
        return self.saver.step == self.step and self._saved_phase is not Phase.FINISHED

    def _prepare_next_window(self, options: _LoopOptions) -> bool:
        """Returns whether there is another window to train; rolls back first where training has diverged.

        A rollback sets the step back, so that there may be windows to train again after the last one.
        """
        self._finish_counting_between_epochs(options)
        self._raise_if_stop_requested()
        if self.is_ending:
            self._pending.read_all()
        if self.recovery.has_diverged:
            self._roll_back()
        return not self.is_ending

    def _finish_counting_between_epochs(self, options: _LoopOptions) -> None:
        """Between two epochs, tells the schedule if the first pass, which counts the batches, has just ended."""
        between_epochs = options.schedule.counts_batches and options.schedule.is_window_end(self.step)
        was_ending = self.is_ending
        if self.step and between_epochs and not self.stopped and self.trainer.finish_counting():
            self._use_counted_batches(options)
        if self.is_ending and not was_ending:
            self._finish_last_step(options)

    def _finish_last_step(self, options: _LoopOptions) -> None:
        """Does what is due at the end of training, after a window that was finished as one before it."""
        self._pending.read_all()
        if self.recovery.has_diverged:
            return
        self._notify("on_last_step", self.step)
        if self._evaluation_due(options) and not self._is_evaluated:
            self.evaluate(options.eval_steps)
        if self._save_due(options) and self.saver.step != self.step:
            self.save_checkpoint()

    def _train_window(self, options: _LoopOptions) -> Mapping[str, float]:
        """Trains up to the end of the window; returns its logs without waiting for the device."""
        self._notify("on_window_begin", self.step)
        begin, first = time.perf_counter(), self.step
        end = min(options.schedule.window_end(first), self.progress.target)
        self.progress.phase = Phase.OPEN
        trained = self._run_trainer(end - first, new_window=options.schedule.is_window_end(first))
        if options.schedule.counts_batches and self._use_counted_batches(options):
            self._notify("on_batches_counted", self.step)
            end = self.step
        if self.step == end or self.stopped:
            self.progress.phase = Phase.TRAINED
        elif self._stop_requested() is None:
            logger.warning("trainer.train(%d) moved the step from %d to %d", end - first, first, self.step)
        return self._pending.add(self.step, trained, self.step - first, begin, time.perf_counter() - begin)

    def _run_trainer(self, steps: int, new_window: bool) -> Any:
        logs = self.trainer.train(
            steps,
            new_window=new_window,
            after_call=self._after_call,
            may_wait=self._may_wait,
            skipper=self._skipper,
        )
        if self._skipper is not None and self.step >= self._skipper.until:
            self._skipper = None
        return logs

    def _after_call(self, step: int) -> bool:
        """Called by the trainer after each compiled call; returns whether to continue."""
        self._notify("on_call_end", step)
        if current_gang().size > 1:  # they agree before the next call; see `engine/call_agreement.py`
            return not self.stopped
        return not self.stopped and self._stop_requested() is None

    def _finish_window(self, options: _LoopOptions, logs: Mapping[str, float]) -> None:
        """Checks, logs, acts, evaluates and saves, in this order.

        Where training has diverged, it ends after the log, or, for hooks that see it, acts and evaluates, too.
        """
        if self._acts:
            self._inner_loop.push()  # while the device still computes: only the actions themselves keep it waiting
        abandoned = self._is_abandoned(options)
        if not self.summary_interval or self.step % self.summary_interval == 0:
            self.tracker.log(self.step, logs, "train")
        if abandoned:
            return
        reason = self.stopped
        self._notify("on_window_end", self.step, logs)
        self.progress.phase = Phase.ACTED
        if self.stopped != reason and self._is_abandoned(options):  # stopped by a hook: more is due now
            return
        ending, evaluating, saving = self.is_ending, self._evaluation_due(options), self._save_due(options)
        if ending:
            self._notify("on_last_step", self.step)
        if evaluating:
            if ending:
                self._save(Phase.ACTED)  # the evaluation is user code: if it fails, the training is not lost
            self.evaluate(options.eval_steps)
            saving = saving or bool(self.stopped)  # an action may just have stopped training
        # Save last: everything that belongs to a saved step is done, and is not repeated after a resume.
        if saving:
            self.save_checkpoint()  # with phase FINISHED: only this save is left
        self.progress.phase = Phase.FINISHED

    @property
    def is_ending(self) -> bool:
        """Whether the target is reached, or training was stopped."""
        return self.step >= self.progress.target or bool(self.stopped)

    def _evaluation_due(self, options: _LoopOptions) -> bool:
        return options.evaluates and options.schedule.evaluation_due(self.step, self.is_ending)

    def _save_due(self, options: _LoopOptions) -> bool:
        if self.saver.is_disabled:
            return False
        due = options.schedule.save_due(self.step, self.saver.step, self.saver.interval)
        at_end = options.save_at_end and self.is_ending
        return due or at_end or self.saver.time_is_up(self.step) or self._is_saved_unfinished

    def _is_abandoned(self, options: _LoopOptions) -> bool:
        """Checks the logs and the state before they are used; returns whether the window is not finished.

        It is not where training has diverged, unless hooks see that. `_prepare_next_window` then rolls back, or raises
        where no trial is left. Waits for the device only where something is due, or acts.
        """
        evaluating = self._evaluation_due(options)
        due = evaluating or self.is_ending or self._save_due(options)
        acting = self._acts
        if not self.recovery.handles_divergence:
            if due:
                self._pending.read_all()
            return False
        if not (due or acting):
            return False
        self._pending.read_all()
        if (evaluating or (acting and due)) and not self.saver.is_disabled:  # else a save checks the state itself
            self.recovery.watch_state(self.step, self.trainer.non_finite())
        is_seen = not self.recovery.rolls_back and any(hook.sees_divergence for hook in self.hooks)
        return self.recovery.has_diverged and not is_seen

    def _use_counted_batches(self, options: _LoopOptions) -> bool:
        """Passes the number of batches to the schedule, once the first pass over the data has counted them."""
        stream = self.trainer.train_stream
        if not options.schedule.set_batches(stream.batches_per_epoch):
            return False
        self.progress.target = min(self.progress.target, options.schedule.target(None))
        if not stream.repeat and self.step < self.progress.target:
            warn_of_data_end("steps_per_epoch")
            self.stop("the data ended: it can be read only once")
        return True

    # -- evaluation ------------------------------------------------------------------------------------------------

    def evaluate(self, steps: int = -1) -> Logs:
        """Evaluates once; returns the logs.

        Raises:
          UsageError: `steps` is neither positive nor -1.
        """
        self._require("evaluator", "evaluate")
        if steps < 1 and steps != -1:
            reason = "must be at least 1, or -1 for the whole set"
            raise UsageError(reason, key="trainer.validation_steps", received=steps)
        if any(hook.watches_evaluation_batches for hook in self.hooks):
            # An interrupted evaluation is repeated from its first batch, with the hooks' state of before.
            self._parts_before_evaluation = self.saver.collect_parts(self.trainer)
        self._notify("on_evaluation_begin", self.step, steps)
        begin = time.perf_counter()
        try:
            logs = dict(self._run_evaluator(steps) or {})
        except Exception:
            self._save_before_failing()
            raise
        logs["eval_seconds"] = round(time.perf_counter() - begin, 3)
        self._parts_before_evaluation = None
        self._notify("on_evaluation_end", self.step, logs)
        self.tracker.log(self.step, logs, "validation")
        self._evaluated = {"step": self.step, "logs": plain(logs)}
        return logs

    def _run_evaluator(self, steps: int) -> Any:
        watching = [hook for hook in self.hooks if hook.watches_evaluation_batches]

        def before_batch(done: int) -> None:
            for hook in watching:
                hook.on_evaluation_batch_begin(done)

        def after_call(done: int) -> bool:
            self._raise_if_stop_requested()
            return all(hook.on_evaluation_batch_end(done) for hook in watching)

        try:
            return self.evaluator.evaluate(
                steps,
                before_call=before_batch if watching else None,
                after_call=after_call,
                may_wait=self._may_wait,
                single_batches=bool(watching),
            )
        except FeedInterrupted:
            self._raise_if_stop_requested()
            raise

    def try_evaluation(self, steps: int) -> int:
        """Evaluates some batches as a check, and restores everything; returns how many batches there were."""
        self._require("evaluator", "try_evaluation")
        variables, generators = self.evaluator.engine.state(), random_state.get()
        self._run_evaluator(steps)
        self.evaluator.engine.load(variables)
        random_state.set(generators)
        return int(getattr(self.evaluator, "evaluated_batches", steps))

    def evaluate_continuously(
        self,
        steps: int = -1,
        timeout: float | None = None,
        timeout_fn: Callable[[], bool] = lambda: False,
        poll: float = 1.0,
    ) -> Logs:
        """Evaluates each new checkpoint that another process writes.

        Ends when `timeout_fn` returns True after an evaluation, or when no new checkpoint has appeared for `timeout`
        seconds: then the trainer is done or dead.

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
                continue  # the trainer has removed it meanwhile; there is a newer one
            self.evaluate(steps)
            self.tracker.flush()
            seen, since = newest, time.monotonic()
            if timeout_fn():
                return self.last_evaluation
        if seen is None:
            raise TrainingError(f"no checkpoint appeared within {timeout} seconds", remedy="start the trainer")
        logger.warning("no new checkpoint for %s seconds after step %d: evaluation ends", timeout, self.step)
        return self.last_evaluation

    # -- checkpoints -----------------------------------------------------------------------------------------------

    def save_checkpoint(self) -> None:
        """Saves now, unless this step is saved already; a state that is not finite is never saved."""
        self._require("trainer", "save_checkpoint")
        self._save(Phase.FINISHED)

    def _save(self, phase: Phase) -> None:
        """Saves the step, unless training has diverged.

        In any phase but FINISHED, the next attempt finishes the step, and saves it again.
        """
        replace = phase is Phase.FINISHED and self._is_saved_unfinished
        if self.saver.is_disabled or (self.checkpointer.latest() == self.step and not replace):
            return
        if self.recovery.has_diverged:
            return
        self.tracker.flush()  # the logs of a saved step must be on disk before it
        meta = {
            "evaluated": self._evaluated,
            "window": {"phase": phase.value, "stopped": self.progress.stopped, "target": self.progress.target},
            "recovery": self.recovery.state(self._skipper.until if self._skipper else 0),
        }
        metrics = self._evaluated["logs"] if self._evaluated["step"] == self.step else {}
        # During an evaluation, hooks that watch its batches have changed. The next attempt repeats the evaluation from
        # its first batch: it needs their state of before.
        parts = self._parts_before_evaluation or self.saver.collect_parts(self.trainer)
        if self.saver.save(self.trainer, parts, meta, metrics, self._problem_in_state, replace):
            self._saved_phase = phase
            self._notify("on_save", self.step)
        elif self.saver.refused:
            self.recovery.alarm = self.saver.refused

    def _problem_in_state(self, step: int, state: OwnState) -> str:
        """Returns what is wrong with a state that is about to be saved; infinities before the first step are kept."""
        keys = self.trainer.non_finite(state)
        if step == 0:
            self.recovery.remember_initial_infinities(keys)
        return self.recovery.problem_in_state(step, keys)

    def _save_before_failing(self) -> None:
        """Saves the step whose evaluation has failed: the next attempt evaluates it again."""
        if self.trainer is None or not self.step:
            return
        with contextlib.suppress(SaveError):  # the error of the evaluation is raised
            self._save(self.progress.phase)
            self.saver.wait()

    def _save_before_exit(self) -> None:
        """Saves for the next attempt, if a stop was requested and training has not diverged."""
        if self._stop_requested() is None:
            return
        self._pending.read_all()
        if self.recovery.has_diverged:
            logger.warning("the state of step %d is not saved: %s", self.step, self.recovery.alarm)
            return
        try:
            self.saver.wait()
        except SaveError as error:  # of an earlier step; this save may succeed
            logger.error("%s", error)
        self._save(self.progress.phase)
        self.saver.require_saved(self.step)

    def restore_checkpoint(self, step: int | None = None) -> int | None:
        """Restores a checkpoint, by default the newest; returns its step, or None if there is none."""
        if step is None and self.checkpointer.latest() is None:
            self._notify("on_restore", None)
            return None
        meta = self.saver.restore_variables(self._inner_loop, self.trainer is not None, step)
        self._evaluated = meta.get("evaluated", self._evaluated)
        self.progress = LoopProgress.from_meta(meta)
        self._saved_phase = self.progress.phase
        self._retrain_step_by_step(until=self.recovery.restore(meta.get("recovery", {})))
        self._notify("on_restore", self.step)
        return self.step

    # -- recovery --------------------------------------------------------------------------------------------------

    def _roll_back(self) -> None:
        """Restores the last good state, and has the steps since then trained one by one, skipping bad batches."""
        reached = max(self.step, self._skipper.until if self._skipper else 0)
        # Write all logs of the steps so far before: afterwards they would count as new ones.
        self._pending.read_all()
        self.tracker.flush()
        computed, target = self.step, self.progress.target
        self.saver.wait()
        self.recovery.count_rollback(self.checkpointer.latest())
        self.restore_checkpoint()
        self.saver.restore_parts()
        self.progress = LoopProgress(self.progress.phase, target=target)
        self.saver.refused = ""
        self._notify("on_rollback", computed - self.step)
        self._retrain_step_by_step(until=reached)
        self.tracker.start(self.step)

    def _watch(self, step: int, logs: Logs) -> None:
        """Checks the logs of a window that ends at `step`; reports the exact bad step, where the trainer knows it."""
        self.recovery.watch(self.trainer.bad_step(step) or step, logs)

    def _retrain_step_by_step(self, until: int) -> None:
        """Has the steps up to `until` trained one by one, each checked."""
        if self.step < until:
            self._skipper = BadBatchSkipper(self.recovery, until)

    # -- helpers ---------------------------------------------------------------------------------------------------

    def _notify(self, event: str, *arguments: Any) -> None:
        """Calls the method `event` of every hook, in their order."""
        for hook in self.hooks:
            getattr(hook, event)(*arguments)

    def _may_wait(self) -> bool:
        """Whether the trainer may wait for the next batch: until a stop is requested."""
        return self._stop_requested() is None

    def _raise_if_stop_requested(self) -> None:
        if (interrupted := self._stop_agreed()) is not None:
            raise interrupted

    def _require(self, attribute: str, method: str) -> None:
        if getattr(self, attribute) is None:
            reason = f"needs {'an' if attribute == 'evaluator' else 'a'} {attribute}"
            raise UsageError(reason, key=f"Controller.{method}", remedy=f"Controller({attribute}=…)")
