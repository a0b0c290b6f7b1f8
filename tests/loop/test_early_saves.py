"""A run that is stopped while a step is being finished: the next attempt does the rest, once."""

import numpy as np
import pytest
from tests.loop.samples import SavedCounter

from everstep.checkpoint.checkpointer import SaveError
from everstep.checkpoint.orbax import OrbaxCheckpointer
from everstep.checkpoint.retention import Retention
from everstep.loop.action_hook import Actions
from everstep.loop.controller import Controller
from everstep.loop.hooks import Hook
from everstep.loop.recovery import Recovery
from everstep.testing.problems import raises_problem
from everstep.tracking.tracker import MemoryTracker


class Stopped(SystemExit):
    pass


class Evaluated(SavedCounter):
    """The best is at step 10."""

    def __init__(self, stop_requested):
        super().__init__()
        self.stop_requested = stop_requested

    def window_logs(self):
        return {"training_loss": 1.0}

    def evaluate(self, num_steps, **calls):
        self.events.append(f"evaluate {self.global_step}")
        if self.stop_requested(self.events):
            raise Stopped(143)
        return {"accuracy": 0.99 if self.global_step == 10 else 0.5}


def attempt(directory, until, stop_requested=lambda events: False, hooks=(), **settings):
    """Trains, evaluating each 5 steps; returns what happened, and which steps are kept."""
    trainer = Evaluated(stop_requested)
    checkpointer = OrbaxCheckpointer(directory, Retention(2, best=1, metric="accuracy"), run="r")
    controller = Controller(
        trainer=trainer,
        evaluator=trainer,
        steps_per_loop=5,
        checkpointer=checkpointer,
        checkpoint_interval=5,
        stop_requested=lambda: Stopped(143) if stop_requested(trainer.events) else None,
        hooks=[Actions([lambda logs: trainer.events.append(f"act {trainer.global_step}")]), *hooks],
        **settings,
    )
    controller.restore_checkpoint()
    try:
        controller.train_and_evaluate(until, eval_interval=5)
    except Stopped:
        trainer.events.append("left")
    checkpointer.close()
    return trainer.events, checkpointer.steps()


def test_the_best_is_kept_though_its_evaluation_was_broken_off(tmp_path):
    assert attempt(tmp_path / "straight", 40)[1] == [10, 35, 40]
    events, steps = attempt(tmp_path / "broken", 40, lambda events: "evaluate 10" in events)
    assert (events[-3:], steps) == (["evaluate 10", "save 10", "left"], [5, 10])
    events, steps = attempt(tmp_path / "broken", 40)
    assert events[:3] == ["evaluate 10", "save 10", "train 5"]
    assert steps == [10, 35, 40]


def test_a_finished_run_has_nothing_left_to_close(tmp_path):
    events, _ = attempt(tmp_path, 10, lambda events: events.count("train 5") == 2)
    assert events[-2:] == ["save 10", "left"]
    assert attempt(tmp_path, 10)[0] == ["act 10", "evaluate 10", "save 10"]
    assert attempt(tmp_path, 10)[0] == []


def test_a_window_that_an_earlier_attempt_trained_has_no_rate(tmp_path):
    attempt(tmp_path, 20, lambda events: events.count("train 5") == 2)
    tracker = MemoryTracker()
    attempt(tmp_path, 20, tracker=tracker)
    logged = [(point.step, "steps_per_second" in point.logs) for point in tracker.points if point.kind == "train"]
    assert logged == [(10, False), (15, True), (20, True)]


def test_an_old_alarm_does_not_keep_a_run_from_saving(tmp_path):
    """Where training continues whatever the loss is, only the state itself is checked."""
    recovery = Recovery(upper_bound=0.01, max_trials=-1)
    _, steps = attempt(tmp_path, 40, lambda events: "evaluate 10" in events, recovery=recovery)
    assert recovery.alarm
    assert steps == [5, 10]


@pytest.mark.parametrize("failure", ["stop", "continue"])
def test_an_earlier_failure_does_not_keep_a_run_from_saving(tmp_path, monkeypatch, failure, caplog):
    """The disk was full for a while."""
    write = OrbaxCheckpointer._write

    def full_at_10(self, record, *rest):
        if record.step == 10:
            raise OSError(28, "No space left on device")
        write(self, record, *rest)

    monkeypatch.setattr(OrbaxCheckpointer, "_write", full_at_10)
    _, steps = attempt(tmp_path, 40, lambda events: "evaluate 15" in events, save_failure=failure)
    assert steps == [5, 15]
    assert "step 10 could not be saved" in caplog.text


def test_initial_infinities_are_saved(tmp_path):
    class Best(Evaluated):
        def state(self, into=None):
            return {"task.best": np.array(np.inf)}, {"step": self.global_step}

    trainer = Best(lambda events: False)
    checkpointer = OrbaxCheckpointer(tmp_path, run="r")
    Controller(trainer=trainer, checkpointer=checkpointer).train(5)
    checkpointer.close()
    assert checkpointer.steps() == [5]


def test_a_rollback_to_the_initial_state_still_accepts_its_infinities(tmp_path):
    """The first checkpoint records them: the state that it restores is judged by that record."""

    class Best(Evaluated):
        def state(self, into=None):
            return {"task.best": np.array(np.inf)}, {"step": self.global_step}

    trainer = Best(lambda events: False)
    checkpointer = OrbaxCheckpointer(tmp_path, run="r")
    recovery = Recovery(max_trials=1)
    Controller(trainer=trainer, checkpointer=checkpointer, recovery=recovery).train(5)
    _, meta = checkpointer.restore(0)
    checkpointer.close()
    assert meta["recovery"]["infinite"] == ["task.best"]


# -- saves that fail ---------------------------------------------------------------------------------------------------


def failing(monkeypatch, step, method="_write"):
    """Makes every save of a step fail: in the background, or, with `method` "save", when it is requested."""
    usual = getattr(OrbaxCheckpointer, method)

    def fail(self, record, *rest):
        if (record if method == "save" else record.step) != step:
            usual(self, record, *rest)
        elif method == "save":
            raise SaveError(f"step {step} could not be saved")
        else:
            raise OSError(28, "No space left on device")

    monkeypatch.setattr(OrbaxCheckpointer, method, fail)


@pytest.mark.parametrize("method", ["_write", "save"])
@pytest.mark.parametrize("failure", ["stop", "continue"])
def test_a_failed_last_save_is_an_error(tmp_path, monkeypatch, failure, method):
    failing(monkeypatch, 20, method)
    with raises_problem(SaveError, reason="step 20 could not be saved"):
        attempt(tmp_path, 20, save_failure=failure)
    assert OrbaxCheckpointer(tmp_path).latest() == 15


@pytest.mark.parametrize("method", ["_write", "save"])
def test_a_failed_save_before_the_last_one_is_none_if_training_continues(tmp_path, monkeypatch, method, caplog):
    failing(monkeypatch, 15, method)
    assert attempt(tmp_path, 20, save_failure="continue")[1] == [10, 20]
    assert caplog.text.count("step 15 could not be saved") == 1


@pytest.mark.parametrize("method", ["_write", "save"])
def test_a_run_that_is_stopped_and_cannot_save_fails(tmp_path, monkeypatch, method):
    failing(monkeypatch, 15, method)
    with raises_problem(SaveError, reason="step 15 could not be saved"):
        attempt(tmp_path, 20, lambda events: "evaluate 15" in events, save_failure="continue")


def test_hooks_hear_only_of_saves_that_were_handed_over(tmp_path, monkeypatch):
    class Saves(Hook):
        steps = []

        def on_save(self, step):
            self.steps.append(step)

    failing(monkeypatch, 10, "save")
    hook = Saves()
    attempt(tmp_path, 20, save_failure="continue", hooks=[hook])
    assert sorted(set(hook.steps)) == [5, 15, 20]


def test_an_initial_state_that_cannot_be_saved_stops_nothing_if_training_continues(tmp_path, monkeypatch, caplog):
    failing(monkeypatch, 0)
    assert attempt(tmp_path, 10, save_failure="continue", recovery=Recovery(max_trials=1))[1] == [5, 10]
    assert "step 0 could not be saved" in caplog.text


class Diverging(Evaluated):
    """Its loss is NaN at step 15, the first time."""

    diverged = False

    def train(self, num_steps, **calls):
        logs = super().train(num_steps)
        if self.global_step == 15 and not self.diverged:
            self.diverged = True
            return {"training_loss": float("nan")}
        return logs


def test_a_rollback_after_a_failed_save_uses_the_checkpoint_before(tmp_path, monkeypatch, caplog):
    failing(monkeypatch, 10)
    trainer, checkpointer = Diverging(lambda events: False), OrbaxCheckpointer(tmp_path, run="r")
    controller = Controller(
        trainer=trainer,
        steps_per_loop=5,
        checkpointer=checkpointer,
        checkpoint_interval=5,
        recovery=Recovery(max_trials=1),
        save_failure="continue",
    )
    controller.train(20)
    checkpointer.close()
    assert "rolling back to step 5" in caplog.text
    assert checkpointer.latest() == 20
