"""A run that ends at a time of day; the clock is the test's."""

import functools
import itertools
import json
import time
from datetime import datetime
from types import SimpleNamespace

import numpy as np
import pytest

from everstep import StopAt
from everstep.loop.controller import Controller
from everstep.run import attempt_hooks
from everstep.run.parent_process import SUPERVISOR, announced
from everstep.run.signals import STOPPED_ITSELF, Interrupted
from everstep.testing.problems import raises_problem

from .samples import SavedCounter, run, weights

pytestmark = pytest.mark.slow


def at(text):
    """Returns a local time in seconds since the epoch."""
    return datetime.fromisoformat(text).timestamp()


def clock(begin):
    """Returns a clock that each look at it moves on by a minute."""
    minutes = itertools.count()
    return lambda: at(begin) + 60 * next(minutes)


@pytest.fixture
def in_berlin(monkeypatch):
    monkeypatch.setenv("TZ", "Europe/Berlin")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


@pytest.mark.parametrize(
    ("begin", "before", "end"),
    [
        ("2026-05-04T06:30", "2026-05-04T06:59:59", "2026-05-04T07:00"),
        ("2026-05-04T07:00", "2026-05-05T06:59:59", "2026-05-05T07:00"),
        ("2026-05-31T22:00", "2026-06-01T06:59:59", "2026-06-01T07:00"),
        ("2026-03-28T22:00", "2026-03-29T06:59:59", "2026-03-29T07:00"),  # the night has eight hours
        ("2026-10-24T22:00", "2026-10-25T06:59:59", "2026-10-25T07:00"),  # and ten
    ],
)
def test_the_next_such_time(in_berlin, begin, before, end):
    now, reasons = [at(begin)], []
    hook = StopAt("07:00", lambda: now[0])
    hook.setup(SimpleNamespace(request_stop=reasons.append))
    hook.on_ready()
    for now[0] in (at(begin), at(before)):
        hook.on_call_end(1)
    assert reasons == []
    now[0] = at(end)
    hook.on_call_end(2)
    assert reasons == ["it is 07:00"]


def test_a_run_is_saved_and_goes_on_until_the_next_such_time(tmp_path):
    whole, _ = run("train", tmp_path / "whole")
    with pytest.raises(Interrupted) as interrupted:
        run("train", tmp_path / "run", hooks=[StopAt("07:00", clock("2026-05-04T06:59"))])
    assert 0 < interrupted.value.saved < 12
    assert interrupted.value.exit_code == STOPPED_ITSELF
    model, _ = run("train", tmp_path / "run", hooks=[StopAt("07:00", clock("2026-05-04T07:01"))])
    np.testing.assert_array_equal(weights(model), weights(whole))
    record = json.loads((tmp_path / "run" / "run.json").read_text())
    assert [attempt["reason"] for attempt in record["attempts"]] == ["it is 07:00", "done"]


def test_a_supervisor_is_told_that_the_run_has_stopped_by_itself(tmp_path, monkeypatch):
    monkeypatch.setenv(SUPERVISOR, str(tmp_path / "announced.json"))
    with pytest.raises(Interrupted):
        run("train", tmp_path / "run", hooks=[StopAt("07:00", clock("2026-05-04T06:59"))])
    assert announced(tmp_path / "announced.json").stop_reason == "it is 07:00"
    run("train", tmp_path / "run", hooks=[StopAt("07:00", clock("2026-05-04T07:01"))])
    assert announced(tmp_path / "announced.json").stop_reason is None


def test_by_configuration(tmp_path, monkeypatch):
    here = functools.partial(StopAt, clock=clock("2026-05-04T16:59"))
    monkeypatch.setattr(attempt_hooks, "StopAt", here)
    with pytest.raises(Interrupted) as interrupted:
        run("train", tmp_path / "run", stop_at="17:00")
    assert interrupted.value.reason == "it is 17:00"
    run("train", tmp_path / "run", stop_at="")


@pytest.mark.parametrize("text", ["7:00", "24:00", "07:60", "07:00:00", "0٧:00"])
def test_what_is_no_time_of_day(tmp_path, text):
    with raises_problem(key="StopAt", received=text, reason="time of day"):
        StopAt(text)
    with raises_problem(key="trainer.stop_at", received=text, reason="time of day"):
        run("train", tmp_path / "run", stop_at=text)


def test_a_loop_that_nobody_can_interrupt():
    with raises_problem(key="StopAt", received="07:00", remedy="request_stop"):
        Controller(trainer=SavedCounter(), hooks=[StopAt("07:00")])
