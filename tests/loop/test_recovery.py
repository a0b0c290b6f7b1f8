"""NaN and spikes: nothing bad is saved, and training goes back, past what did the harm, as often as it may."""

import numpy as np
import pytest

from everstep.errors import TrainingError
from everstep.loop.recovery import Recovery, non_finite


def test_what_is_bad_about_logs():
    recovery = Recovery(upper_bound=10.0, begin_steps=5)
    assert recovery.judge(1, {"training_loss": 3.0}) == ""
    assert recovery.judge(1, {"training_loss": 30.0}) == ""
    assert recovery.judge(5, {"training_loss": 30.0}).startswith("the training loss is 30 at step 5, above trainer.")
    for loss in (np.nan, np.inf, -np.inf):
        assert recovery.judge(1, {"training_loss": loss}) == f"the training loss is {loss} at step 1"


def test_what_is_bad_about_a_state():
    state = {"a": np.ones(3), "b": np.array([1.0, np.nan]), "c": np.array(3), "d": np.float16([np.inf])}
    assert non_finite(state) == ["b", "d"]
    assert Recovery().judge_state(4, state) == "b and 1 more is not finite after step 4"
    assert Recovery().judge_state(4, {"a": np.ones(3)}) == ""


def test_what_was_infinite_from_the_start_is_meant_to_be():
    recovery = Recovery()
    best = {"task.best": np.array(np.inf)}
    assert recovery.judge_state(0, best) == ""
    assert recovery.judge_state(9, best) == ""
    assert recovery.judge_state(9, best | {"w": np.array(np.nan)}) == "w is not finite after step 9"
    again = Recovery()
    again.restore(recovery.state())
    assert again.judge_state(9, best) == ""


def test_no_trials_left():
    recovery = Recovery(max_trials=1, alarm="bad")
    recovery.try_again(10)
    assert recovery.alarm == ""
    recovery.alarm = "bad again"
    with pytest.raises(
        TrainingError, match="bad again; after 1 trials, the checkpoint of step 10 is the last good one"
    ):
        recovery.try_again(10)


def test_trials_are_remembered():
    recovery = Recovery(max_trials=5, trials=2, skipped=[{"step": 3, "epoch": 0, "batch": 2}])
    again = Recovery(max_trials=5)
    again.restore(recovery.state())
    assert (again.trials, again.skipped) == (2, recovery.skipped)
    again.trials = 4
    again.restore(recovery.state())
    assert again.trials == 4
