"""The outer loop of `everstep.fit`: windows are epochs, and Keras callbacks look on."""

import contextlib
import logging
import warnings
from collections.abc import Iterator, Mapping
from typing import Any

import keras

from everstep.errors import TrainingError, UsageError
from everstep.loop.controller import Controller
from everstep.loop.epoch_lengths import OPEN, EpochLengths, EpochWindows
from everstep.loop.keras_callbacks import BETWEEN, KerasCallbacks
from everstep.loop.plan import Plan
from everstep.loop.saver import undisturbed
from everstep.loop.windows import Windows
from everstep.types import Logs, State

logger = logging.getLogger(__name__)


class EpochController(Controller):
    """A controller that calls Keras callbacks, and saves what they remember.

    Args:
      callbacks: They.
      keep: Whether checkpoints are kept at all.
      epochs_key: What the user calls the number of epochs.
      epochs_origin: The file and line that say it, where there is one.
      **kwargs: As for `Controller`.
    """

    def __init__(
        self,
        *,
        callbacks: KerasCallbacks,
        keep: bool,
        epochs_key: str = "epochs",
        epochs_origin: str = "",
        **kwargs: Any,
    ) -> None:
        super().__init__(**(kwargs if keep else {**kwargs, "checkpointer": None}))
        self.callbacks = callbacks
        self._evaluated_steps = 0
        self._epochs_key, self._epochs_origin = epochs_key, epochs_origin
        self._before_evaluation: tuple[State, dict[str, Any]] | None = None
        self.saver.parts.insert(0, callbacks)
        self.train_actions.append(self._after_training)
        self.eval_actions.append(self._after_evaluation)

    @property
    def lengths(self) -> EpochLengths:
        """Where epochs begin and end."""
        return self.callbacks.lengths

    def train(self, steps: int | None, checkpoint_at_completion: bool = True) -> Logs:
        """Trains all epochs, but no more than `steps` steps in all; returns the last epoch's logs."""
        plan = Plan(self._total(steps), EpochWindows(self.lengths), save_at_end=checkpoint_at_completion)
        return self._carry_out(plan)

    def train_and_evaluate(
        self, train_steps: int | None, eval_steps: int = -1, eval_interval: int | None = None
    ) -> Logs:
        """Trains all epochs, but no more than `train_steps` steps, evaluating at the ends of those that are to be.

        Returns:
          The logs of the last evaluation.
        """
        self._require("evaluator", "train_and_evaluate")

        def due() -> bool:
            return self.callbacks.evaluation_due(self.step, bool(self.stopped))

        self._carry_out(Plan(self._total(train_steps), EpochWindows(self.lengths), due, eval_steps))
        return self.last_evaluation

    def _total(self, steps: int | None) -> int:
        """Returns at which step training ends; `OPEN` while the first epoch has not told how long it is."""
        total = self.lengths.begin(self.callbacks.epochs)
        return min(OPEN if steps is None else steps, OPEN if total is None else total)

    def restore_checkpoint(self, step: int | None = None) -> int | None:
        """Restores a checkpoint; a run that has none begins with the first epoch it was told, as if after others."""
        found = super().restore_checkpoint(step)
        first, stream = self.callbacks.first_epoch, self.trainer.train_stream
        if found is None and first and stream.counting:
            self.lengths.first_epoch = first
        elif found is None and first:
            self._start_at(self.lengths.begin(first) or 0)
        if stream.counting and self.lengths.batches:
            stream.count(self.lengths.batches)
        return found

    def refuse_fewer(self, train_steps: int, asked: str) -> None:
        """Refuses fewer epochs than the restored run has trained.

        Raises:
          UsageError: It has trained more, or is inside a later one.
        """
        whole, begun = self.lengths.number(self.step), self.step - self.lengths.first(self.step)
        if self.step > self._total(train_steps or None):
            trained = f"epoch {whole + 1} has begun" if begun else f"{whole} are trained"
            origin = f" (from {self._epochs_origin})" if self._epochs_origin else ""
            raise UsageError(
                f"{self._epochs_key}: received {self.callbacks.epochs}, but {trained} already: ask for "
                f"{whole + bool(begun)} or more, or start a new run{origin}"
            )

    def _start_at(self, step: int) -> None:
        """Begins after so many steps: data whose epochs have a length is read from where they would have led."""
        batches = self.trainer.train_stream.batches_per_epoch
        epoch, batch = divmod(step, batches) if batches else (0, 0)
        state = self.trainer.engine.state()
        self.recovery.judge_state(0, state)  # what is infinite now is meant to be
        self.trainer.restore(state, {"step": step, "stream": {"epoch": epoch, "batch": batch}})
        self.saver.step = step

    def _begin(self) -> None:
        """Calls what an attempt begins with; what that changes in a run that goes on is set back, variables too."""
        if (self.stopped or self.step >= self._target) and self.callbacks.phase == BETWEEN:
            super()._begin()  # nothing is left to train: no hook is called, and what they know is shown
            return
        self._watch_steps()
        self._watch_evaluation()
        variables = self.trainer.engine.state() if self.saver.goes_on else None
        with self._shown():
            self.callbacks.begin(self.step, going_on=self.saver.goes_on)
        if variables is not None:
            self.trainer.engine.load(variables)
        super()._begin()

    def _is_done(self) -> bool:
        if self.step and self.callbacks.phase == BETWEEN and not self.stopped and self.trainer.at_pass_end():
            self._pass_was_counted()
        return super()._is_done()

    def _end_of_window(self, end: int) -> int:
        if self.lengths.batches is None and self.trainer.train_stream.batches_per_epoch is not None:
            self._pass_was_counted()
            self._show_last_step()
            return self.step
        return end

    def _show_last_step(self) -> None:
        """Shows callbacks the last steps of an epoch, of which nobody knew that they were: fewer than the others."""
        done = self.lengths.done(self.step)
        if self.callbacks.single_steps and not self.callbacks.due(done):
            with self._shown():
                self.callbacks.end_batch(done, self.trainer.engine.read("train"))

    def _pass_was_counted(self) -> None:
        """The first pass has told how many batches there are, and with it how many steps there will be."""
        stream = self.trainer.train_stream
        self.lengths.counted(stream.batches_per_epoch)
        self._target = min(self._target, self._total(None))
        if not stream.repeat and self.step < self._target:
            _warn_of_end()
            self.stop("the data ran out: it can be read only once")

    def _due(self, plan: Plan) -> tuple[bool, bool, bool]:
        ending, evaluating, saving = super()._due(plan)
        # Where epochs differ in length, multiples of an interval would miss the ends of some.
        return ending, evaluating, saving or (bool(self.saver.interval) and not self.lengths.is_regular)

    def _train_window(self, windows: Windows, end: int) -> Mapping[str, float]:
        if self.callbacks.phase == BETWEEN:
            with self._shown():
                self.callbacks.begin_epoch(self.step)
        return super()._train_window(windows, end)

    def evaluate(self, steps: int = -1) -> Logs:
        """Evaluates once; returns the logs."""
        if self.callbacks.single_evaluations:
            self._before_evaluation = super()._parts()
        logs = super().evaluate(steps)
        if self.trainer.evaluated_batches < steps and not getattr(self.callbacks.model, "stop_evaluating", False):
            _warn_of_end("validation_steps")
        return logs

    def _parts(self) -> tuple[State, dict[str, Any]]:
        # An evaluation that is cut short is done again from its first batch: what hooks learned in it does not count.
        return self._before_evaluation or super()._parts()

    @contextlib.contextmanager
    def _shown(self) -> Iterator[None]:
        """Inside the block hooks may look at the Keras objects, and change them."""
        with undisturbed(self.trainer):
            self.trainer.engine.push()
            yield
            self.trainer.engine.pull()

    def _watch_steps(self) -> None:
        """After each call of the engine, looks whether to stop; where callbacks watch batches, each step is a call."""
        if names := ", ".join(self.callbacks.single_steps):
            logger.warning("running single steps: %s wants to be called at every batch", names)
        if names or self._steps_may_stop():
            self.trainer.step_by_step()
        after, report = self._after_step if names else self._after_call, self.trainer.after_call
        # Both, always, and the report first: whatever a callback does now, the step is done.
        self.trainer.after_call = lambda step: all([report(step), after(step)])

    def _steps_may_stop(self) -> bool:
        """Whether a step of the model's own may set `model.stop_training` whenever it runs, not only when compiled."""
        return self.trainer.engine.is_eager and type(self.callbacks.model).train_step is not keras.Model.train_step

    def _watch_evaluation(self) -> None:
        if not self.callbacks.single_evaluations:
            return
        names = ", ".join(self.callbacks.single_evaluations)
        logger.warning("evaluating in single steps: %s wants to be called at every batch", names)
        self.trainer.around_validation = self._before_evaluation_step, self._after_evaluation_step

    def _before_evaluation_step(self, done: int) -> None:
        self._evaluated_steps = done
        if not self.callbacks.due(done):
            return
        with self._shown():
            if not done:
                self.callbacks.model.stop_evaluating = False
            self.callbacks.begin_test_batch(done)

    def _after_evaluation_step(self, done: int) -> bool:
        """Shows one step to the callbacks; False ends the evaluation here, as Keras would."""
        self._evaluated_steps = done
        if not self.callbacks.due(done):
            return True
        with self._shown():
            self.callbacks.end_test_batch(done, self.trainer.engine.read("validation"))
        return not self.callbacks.model.stop_evaluating

    def _after_step(self, step: int) -> bool:
        """Shows one step to the callbacks; False ends the epoch here, as Keras would."""
        done, last = self.lengths.done(step), self.lengths.end(step - 1) == step
        if not last and not self.callbacks.due(done):
            return True
        with self._shown():
            self.callbacks.end_batch(done, self.trainer.engine.read("train"))
            if not last and not self.callbacks.model.stop_training:
                self.callbacks.begin_batch(done)
        return self._after_call(step)

    def _after_call(self, step: int) -> bool:
        """Returns whether to go on: anybody may set `model.stop_training`, from another thread, too."""
        self._stop_if_told()
        return not self.stopped

    def _go_back(self) -> None:
        logs = self.trainer.window_logs()
        try:
            super()._go_back()
        except TrainingError:
            self.callbacks.note_failure(logs)
            raise

    def _after_training(self, logs: Any) -> None:
        if not self.stopped and self.lengths.is_cut(self.step):
            _warn_of_end()
        self.callbacks.after_training(self.step, logs)
        self._stop_if_told()

    def _after_evaluation(self, logs: Any) -> None:
        self._before_evaluation = None
        if self.callbacks.single_evaluations and not self.callbacks.due(self._evaluated_steps):
            self.callbacks.end_test_batch(self._evaluated_steps, logs)  # of fewer steps than the others
        self.callbacks.after_evaluation(logs)
        self._stop_if_told()

    def _stop_if_told(self) -> None:
        if self.callbacks.model.stop_training:
            self.stop("model.stop_training was set")


def _warn_of_end(steps: str = "steps_per_epoch") -> None:
    """Says what Keras says where an epoch or an evaluation gets fewer batches than it was to have."""
    doing = "training" if steps == "steps_per_epoch" else "evaluation"
    warnings.warn(
        f"Your input ran out of data; interrupting {doing}. It ends where a pass over the data does: make {steps} a "
        "divisor of the number of batches, or let the data repeat itself, as dataset.repeat() does.",
        stacklevel=2,
    )
