"""A run that is stopped while a step is being finished: the next attempt does the rest, once."""

import numpy as np
import pytest
from tests.loop.samples import SavedCounter

from everstep.checkpoint.orbax import OrbaxCheckpointer
from everstep.checkpoint.retention import Retention
from everstep.loop.controller import Controller
from everstep.loop.recovery import Recovery
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

    def evaluate(self, num_steps):
        self.events.append(f"evaluate {self.global_step}")
        if self.stop_requested(self.events):
            raise Stopped(143)
        return {"accuracy": 0.99 if self.global_step == 10 else 0.5}


def attempt(directory, until, stop_requested=lambda events: False, **settings):
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
        train_actions=[lambda logs: trainer.events.append(f"act {trainer.global_step}")],
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
