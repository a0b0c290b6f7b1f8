"""Tracking settings that are refused."""

import importlib.util

import pytest

import everstep
from everstep.testing.problems import raises_problem
from everstep.tracking import system_metrics


@pytest.mark.parametrize("profile", ["1", "20..10", "5..5", "a..b", "-1..3", "1...3", "yes", "1..2..3"])
def test_a_profile_of_nonsense(profile):
    with raises_problem(key="trainer.profile", received=profile, reason="expected steps, as '200..220', or 'auto'"):
        everstep.get_exp_config("mnist/mlp").replace(trainer={"profile": profile}).validate()


def test_a_profile_beyond_the_end():
    params = everstep.get_exp_config("mnist/mlp").replace(trainer={"profile": "100..120", "train_steps": 100})
    with raises_problem(key="trainer.profile", received="100..120", reason="but training ends at step 100"):
        params.validate()


@pytest.mark.parametrize("seconds", [-1.0, 0.01, float("inf"), float("nan")])
def test_seconds_edge_cases(seconds):
    params = everstep.get_exp_config("mnist/mlp").replace(trainer={"tracking": {"system_seconds": seconds}})
    with raises_problem(key="trainer.tracking.system_seconds", reason="must be 0 for none") as error:
        params.validate()
    assert error.value.received is params.trainer.tracking.system_seconds


def test_a_machine_that_cannot_be_read_is_refused_before_anything_is_done(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    system_metrics.require(0.0)
    with raises_problem(reason="needs the package 'psutil',", remedy=r"pip install .*\[system\]'"):
        system_metrics.require(1.0)
