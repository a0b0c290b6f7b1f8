"""NaN and spikes: nothing bad is saved, and training is rolled back and skips bad batches, as often as allowed."""

import contextlib
import signal

import numpy as np
import pytest

import everstep as es
from everstep.checkpoint.orbax import OrbaxCheckpointer
from everstep.errors import TrainingError
from everstep.experiment import create_trainer
from everstep.loop.hooks import Hook
from everstep.loop.recovery import Recovery
from everstep.run.record import read
from everstep.testing.problems import raises_problem
from everstep.testing.reliability.nan_injection import Spoiled

pytestmark = pytest.mark.slow


def test_bad_logs():
    recovery = Recovery(upper_bound=10.0, begin_steps=5)
    assert recovery.problem_in_logs(1, {"training_loss": 3.0}) == ""
    assert recovery.problem_in_logs(1, {"training_loss": 30.0}) == ""
    assert recovery.problem_in_logs(5, {"training_loss": 30.0}).startswith(
        "the training loss is 30 at step 5, above trainer."
    )
    for loss in (np.nan, np.inf, -np.inf):
        assert recovery.problem_in_logs(1, {"training_loss": loss}) == f"the training loss is {loss} at step 1"


def test_bad_states():
    assert Recovery().problem_in_state(4, ["b", "d"]) == "b and 1 more is not finite after step 4"
    assert Recovery().problem_in_state(4, []) == ""


def test_initial_infinities_are_intended():
    recovery = Recovery()
    best = ["task.best"]
    recovery.remember_initial_infinities(best)
    assert recovery.problem_in_state(0, best) == ""
    assert recovery.problem_in_state(9, best) == ""
    assert recovery.problem_in_state(9, [*best, "w"]) == "w is not finite after step 9"
    again = Recovery()
    again.restore(recovery.state())
    assert again.problem_in_state(9, best) == ""


def test_a_bad_state_raises_the_alarm_once():
    recovery = Recovery()
    recovery.watch_state(4, [])
    assert recovery.alarm == ""
    for step in (5, 6):
        recovery.watch_state(step, ["w"])
        assert recovery.alarm == "w is not finite after step 5"


def test_no_trials_left():
    recovery = Recovery(max_trials=1, alarm="bad")
    recovery.count_rollback(10)
    assert recovery.alarm == ""
    recovery.alarm = "bad again"
    with raises_problem(
        TrainingError, reason="bad again; after 1 trial, the checkpoint of step 10 is the last good one"
    ):
        recovery.count_rollback(10)


def test_trials_are_remembered():
    recovery = Recovery(max_trials=5, trials=2, skipped=[{"step": 3, "epoch": 0, "batch": 2}])
    again = Recovery(max_trials=5)
    again.restore(recovery.state())
    assert (again.trials, again.skipped) == (2, recovery.skipped)
    again.trials = 4
    again.restore(recovery.state())
    assert again.trials == 4


def spoiled_run(trials, loop):
    params = es.ExperimentConfig(
        {
            "trainer": {
                "train_steps": 30,
                "steps_per_loop": loop,
                "checkpoint_interval": 10,
                "recovery_max_trials": trials,
                "optimizer_config": {"optimizer": {"type": "sgd"}},
            },
            "task": {"train_data": {"global_batch_size": 10}, "validation_data": {"global_batch_size": 10}},
        }
    )
    task = Spoiled(params.task, "loss", 204)
    trainer = create_trainer(params, task, True, False)
    return params, task, trainer


def test_one_bad_batch_takes_one_trial(tmp_path):
    """Its logs are not written by the trackers yet when training is rolled back."""
    for number in range(3):
        params, task, trainer = spoiled_run(trials=1, loop=1)
        es.run_experiment(task, params, tmp_path / str(number), "train", trainer=trainer, verbose=False)
        assert trainer.global_step == 30


def test_the_first_batch_of_an_epoch_is_named_by_that_epoch(tmp_path):
    class InOrder(Spoiled):
        def build_inputs(self, params, input_context=None):
            x, y = super().build_inputs(params)
            return lambda: ((x[row : row + 10], y[row : row + 10]) for row in range(0, 40, 10))

    params, _, _ = spoiled_run(trials=3, loop=1)
    params.override({"trainer": {"train_steps": 5}})
    task = InOrder(params.task, "loss", 0)
    trainer = create_trainer(params, task, True, False)
    es.run_experiment(task, params, tmp_path, "train", trainer=trainer, verbose=False)
    skipped = OrbaxCheckpointer(tmp_path / "checkpoints", run=read(tmp_path)["id"]).restore(5)[1]["recovery"]["skipped"]
    assert [(batch["epoch"], batch["batch"]) for batch in skipped] == [(0, 0), (1, 0)]


def test_a_run_stopped_while_skipping_batches_resumes_skipping(tmp_path):
    """Uninterrupted it takes one trial; so it does in three attempts."""

    class Asks(Hook):
        def on_call_end(self, step):
            if stopping and self.controller._skipper is not None:
                signal.raise_signal(signal.SIGTERM)

    for stopping in (True, True, False):
        params, task, trainer = spoiled_run(trials=1, loop=5)
        context = pytest.raises(SystemExit, match="SIGTERM") if stopping else contextlib.nullcontext()
        with context:
            es.run_experiment(task, params, tmp_path / "run", "train", trainer=trainer, hooks=[Asks()], verbose=False)
    assert trainer.global_step == 30


def test_skipped_batches_count_as_trials_in_the_error():
    recovery = Recovery(max_trials=1, alarm="bad")
    recovery.count_rollback(10)
    recovery.record_skipped(11, {"epoch": 0, "batch": 3}, "bad", further=False)
    with raises_problem(TrainingError, reason="bad; after 1 trial, nothing bad was saved"):
        recovery.record_skipped(12, {"epoch": 0, "batch": 4}, "bad", further=True)
