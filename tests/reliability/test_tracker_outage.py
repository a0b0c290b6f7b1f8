"""A tracking server that fails for a while: training does not notice, and in the end every point is there, once."""

import dataclasses

import pytest

from everstep.testing.reliability import tracker_outage
from everstep.testing.reliability.tracker_outage import SCENARIOS, Figures, fails, measure
from everstep.testing.servers.mlflow_server import memory_folder

pytestmark = pytest.mark.slow


@pytest.mark.parametrize(
    "scenario",
    [fails, *(pytest.param(one, marks=pytest.mark.full) for one in SCENARIOS if one is not fails)],
    ids=lambda scenario: scenario.__name__,
)
def test_training_does_not_wait_and_nothing_is_lost(tmp_path, monkeypatch, scenario):
    # A server that fails answers at once; only one that hangs must not be waited for.
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_TIMEOUT", "20" if scenario is fails else "1")
    with memory_folder() as memory:
        figures = measure(scenario, tmp_path, memory, tracker_outage.SMALL)
    assert figures.passed(), figures.line()
    assert figures.logged == figures.on_server > 300


@pytest.mark.parametrize(
    "change",
    [{"log_p99": 0.06}, {"added_p99": 0.06}, {"missing": 1}, {"duplicates": 1}, {"runs": 2}],
    ids=lambda change: next(iter(change)),
)
def test_violations_do_not_pass(change):
    good = Figures("fails", 0.001, 0.002, 0.0, 900, 900, 0, 0, 1, 2.0)
    assert good.passed()
    assert not dataclasses.replace(good, **change).passed()


def test_what_a_busy_machine_delays_is_not_held_against_tracking():
    busy = Figures("fails", 0.001, 0.002, 0.060, 900, 900, 0, 0, 1, 2.0, delay_p99=0.055)
    assert busy.passed()
    assert not dataclasses.replace(busy, added_p99=0.106).passed()
