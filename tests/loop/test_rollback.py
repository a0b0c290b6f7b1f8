"""Training that diverges, by a trainer that only counts: it goes back to the last good state, and is tried again."""

import math

import numpy as np
import pytest

from everstep.checkpoint.checkpointer import SaveError
from everstep.errors import DivergedError, TrainingError
from everstep.loop.controller import Controller
from everstep.loop.hooks import Hook
from everstep.loop.recovery import Recovery
from everstep.testing.problems import raises_problem
from everstep.tracking.tracker import MemoryTracker

from .samples import MemoryCheckpointer, SavedCounter, SlowCheckpointer


class Diverging(SavedCounter):
    """Has no finite loss from a bad step on, until it is restored: then that step is good."""

    def __init__(self, *bad):
        super().__init__()
        self.bad, self.diverged = list(bad), False

    def train(self, num_steps, *, after_call, skipper, **calls):
        logs = super().train(num_steps)
        if skipper is not None:
            self.events[-1] += f", checked up to {skipper.until}"
        if self.bad and self.global_step >= self.bad[0]:
            self.diverged = True
        after_call(self.global_step)
        return {"training_loss": math.nan} if self.diverged else logs

    def restore(self, state, meta):
        super().restore(state, meta)
        self.events.append(f"restore {self.global_step}")
        if self.diverged:
            self.diverged = False
            self.bad.pop(0)


def control(trainer, trials=1, **settings):
    recovery = Recovery(max_trials=trials)
    given = {"steps_per_loop": 5, "checkpointer": MemoryCheckpointer(), "checkpoint_interval": 10, **settings}
    return Controller(trainer=trainer, evaluator=trainer, recovery=recovery, **given)


def test_the_steps_since_the_last_good_state_are_trained_again_and_checked_one_by_one():
    trainer = Diverging(20)
    control(trainer).train(30)
    assert trainer.events[:5] == ["train 5", "train 5", "save 10", "train 5", "train 5"]
    checked = ["train 5, checked up to 20"] * 2
    assert trainer.events[5:] == ["restore 10", *checked, "save 20", "train 5", "train 5", "save 30"]


def test_the_last_good_state_may_still_be_being_written():
    trainer = Diverging(20)
    control(trainer, checkpointer=SlowCheckpointer()).train(20)
    assert "restore 10" in trainer.events


def test_nothing_is_trained_before_there_is_a_state_to_go_back_to():
    trainer = Diverging()
    with pytest.raises(SaveError, match="the disk is full"):
        control(trainer, checkpointer=SlowCheckpointer(SaveError("the disk is full"))).train(20)
    assert trainer.events == []


def test_the_step_that_diverged_is_named_where_the_trainer_knows_it():
    class Knowing(Diverging):
        def bad_step(self, step):
            return 13 if step == 15 else None

    with raises_problem(DivergedError, reason="the training loss is nan at step 13"):
        control(Knowing(15), trials=0).train(20)


def test_a_further_divergence_does_not_shorten_what_is_checked():
    """A hook that acts has each window checked: the second one is noticed at step 15."""
    trainer = Diverging(20, 15)
    control(trainer, trials=2, hooks=[Remembering()]).train(20)
    checked = "train 5, checked up to 20"
    again = [event for event in trainer.events[trainer.events.index("restore 10") :] if not event.startswith("save")]
    assert again == ["restore 10", checked, "restore 10", checked, checked]


def test_logs_of_windows_before_a_rollback_raise_no_alarm_after_it():
    """The loss is read two windows late: the alarm of step 5 comes after the window that ends at step 15."""
    trainer = Diverging(5)
    controller = control(trainer, checkpoint_interval=0)
    controller.train(30)
    assert trainer.events.count("restore 0") == controller.recovery.trials == 1


def test_the_first_steps_are_not_checked_if_a_run_resumes_before_them():
    class Killed(Hook):
        def on_window_begin(self, step):
            raise KeyboardInterrupt

    checkpointer, trainer = MemoryCheckpointer(), Diverging()
    with pytest.raises(KeyboardInterrupt):
        control(Diverging(), checkpointer=checkpointer, hooks=[Killed()]).train(10)
    assert checkpointer.steps() == [0]  # there is a state to roll back to
    controller = control(trainer, checkpointer=checkpointer)
    assert controller.restore_checkpoint() == 0
    controller.train(10)
    assert trainer.events == ["restore 0", "train 5", "train 5", "save 10"]


class Remembering(Hook):
    """Has the windows that it has seen as its state."""

    name = "remembering"

    def __init__(self):
        self.windows, self.rolled_back = [], []

    def on_window_end(self, step, logs):
        self.windows.append(step)

    def on_rollback(self, steps):
        self.rolled_back.append((steps, list(self.windows)))

    def state(self):
        return {}, list(self.windows)

    def restore(self, arrays, meta):
        self.windows = list(meta)


def test_hooks_go_back_too_and_hear_by_how_many_steps():
    hook = Remembering()
    control(Diverging(20), hooks=[hook]).train(30)
    assert hook.rolled_back == [(10, [5, 10])]
    assert hook.windows == [5, 10, 15, 20, 25, 30]


def test_what_was_logged_is_written_before_the_tracker_starts_again_at_the_good_step():
    class Recorded(MemoryTracker):
        def __init__(self):
            super().__init__()
            self.calls = []

        def log(self, step, logs, kind):
            super().log(step, logs, kind)
            self.calls.append(f"log {step}")

        def flush(self):
            self.calls.append("flush")

        def start(self, step):
            super().start(step)
            self.calls.append(f"start {step}")

    tracker = Recorded()
    control(Diverging(20), tracker=tracker).train(20)
    begin = tracker.calls.index("log 20")
    assert tracker.calls[begin : begin + 3] == ["log 20", "flush", "start 10"]
    assert [point.step for point in tracker.points] == [5, 10, 15, 20]


def test_a_run_that_a_hook_has_stopped_because_it_diverged_goes_on():
    class Stopping(Hook):
        def on_call_end(self, step):
            if self.controller.trainer.diverged:
                self.controller.stop("the loss is bad")

    controller = control(Diverging(15), hooks=[Stopping()])
    controller.train(30)
    assert (controller.stopped, controller.step) == ("", 30)


class Seeing(Hook):
    """Wants to see a window in which training diverged."""

    sees_divergence = True

    def on_window_end(self, step, logs):
        self.controller.trainer.events.append(f"act {step}")


def test_a_hook_may_see_a_window_that_diverged_before_the_run_fails():
    trainer, checkpointer = Diverging(10), MemoryCheckpointer()
    with raises_problem(DivergedError, reason="nan at step 10"):
        control(trainer, trials=0, checkpointer=checkpointer, hooks=[Seeing()]).train_and_evaluate(15, eval_interval=5)
    assert trainer.events[-2:] == ["act 10", "evaluate 10"]
    assert checkpointer.steps() == []


def test_it_does_not_see_a_window_that_is_rolled_back():
    trainer = Diverging(10)
    control(trainer, hooks=[Seeing()]).train(10)
    acted = [event for event in trainer.events if event.startswith(("act", "restore"))]
    assert acted == ["act 5", "restore 0", "act 5", "act 10"]


def test_a_run_that_is_interrupted_when_it_has_diverged_is_not_saved_and_says_so(caplog):
    trainer, checkpointer = Diverging(15), MemoryCheckpointer()

    def stop_requested():
        return SystemExit(143) if trainer.global_step == 15 else None

    with pytest.raises(SystemExit):
        control(trainer, checkpointer=checkpointer, stop_requested=stop_requested).train(30)
    assert checkpointer.steps() == [0, 10]
    assert caplog.messages == ["the state of step 15 is not saved: the training loss is nan at step 15"]


class Spoiled(SavedCounter):
    """Its weight is NaN from a step on; its loss does not show that."""

    def __init__(self, nan_at):
        super().__init__()
        self.nan_at = nan_at

    def state(self, into=None):
        weight = np.nan if self.global_step >= self.nan_at else 1.0
        return {"weight": np.array(weight)}, {"step": self.global_step}


def test_an_initial_state_that_is_not_finite_is_saved_where_a_program_asks_for_it():
    checkpointer = MemoryCheckpointer()
    control(Spoiled(0), checkpointer=checkpointer).save_checkpoint()
    assert checkpointer.steps() == [0]


def test_a_state_that_is_not_finite_is_not_saved_and_ends_a_run_without_trials():
    checkpointer = MemoryCheckpointer()
    with raises_problem(DivergedError, reason="weight is not finite after step 20"):
        control(Spoiled(20), trials=0, checkpointer=checkpointer).train(30)
    assert checkpointer.steps() == [10]


def test_a_run_that_goes_on_in_any_case_ends_with_an_error_if_its_last_state_cannot_be_saved():
    trainer, checkpointer = Spoiled(20), MemoryCheckpointer()
    with raises_problem(TrainingError, reason="its last state is not saved: weight is not finite after step 30"):
        control(trainer, trials=-1, checkpointer=checkpointer).train(30)
    assert (trainer.global_step, checkpointer.steps()) == (30, [10])
