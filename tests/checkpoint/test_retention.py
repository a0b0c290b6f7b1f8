"""Which checkpoints stay: a rule over steps, times and metrics."""

import math

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from everstep.checkpoint.retention import Entry, Retention
from everstep.errors import UsageError


def entries(*steps: int, metrics: dict[int, float] | None = None) -> list[Entry]:
    values = {step: {"accuracy": value} for step, value in (metrics or {}).items()}
    return [Entry(step, 10.0 * step, values.get(step, {})) for step in steps]


def test_the_newest_stay():
    assert Retention(2).kept(entries(1, 2, 3, 10)) == {3, 10}


def test_one_for_every_so_many_steps_stays_for_good():
    assert Retention(2, every_steps=100).kept(entries(50, 100, 149, 151, 260, 270, 280)) == {50, 151, 260, 270, 280}


def test_one_for_every_so_many_seconds_stays_for_good():
    assert Retention(2, every_seconds=40).kept(entries(1, 2, 3, 4, 5, 6, 7)) == {1, 5, 6, 7}


@pytest.mark.parametrize(("mode", "kept"), [("higher", {4, 6, 7}), ("lower", {2, 6, 7})])
def test_the_best_stay(mode, kept):
    values = {2: 0.5, 3: 0.7, 4: 0.9, 5: 0.8}
    assert Retention(2, best=1, metric="accuracy", mode=mode).kept(entries(2, 3, 4, 5, 6, 7, metrics=values)) == kept


def test_of_equal_ones_the_older_stays():
    rule = Retention(2, best=1, metric="accuracy")
    assert rule.kept(entries(1, 2, 3, 8, 9, metrics={1: 0.5, 2: 0.9, 3: 0.9})) == {2, 8, 9}


@pytest.mark.parametrize("mode", ["higher", "lower"])
@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_what_is_not_finite_is_never_the_best(mode, value):
    rule = Retention(2, best=2, metric="accuracy", mode=mode)
    assert rule.kept(entries(1, 2, 8, 9, metrics={1: value, 2: 0.1})) == {2, 8, 9}


@pytest.mark.parametrize("newest", [1, 0, -3])
def test_one_alone_is_too_few(newest):
    with pytest.raises(UsageError, match=f"max_to_keep: received {newest}, must be at least 2"):
        Retention(newest)


def test_the_best_need_a_metric():
    with pytest.raises(UsageError, match="keep_best: needs the name of a metric"):
        Retention(best=1)


STEPS = st.sets(st.integers(0, 500), max_size=30)
VALUES = st.dictionaries(st.integers(0, 500), st.floats(width=16))
RULES = st.builds(
    Retention,
    newest=st.integers(2, 5),
    every_steps=st.none() | st.integers(1, 90),
    every_seconds=st.none() | st.floats(1, 900),
    best=st.integers(0, 3),
    metric=st.just("accuracy"),
    mode=st.sampled_from(["higher", "lower"]),
)


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(STEPS, VALUES, RULES)
def test_the_rule_is_stable_and_never_leaves_nothing(steps, values, rule):
    saved = entries(*sorted(steps), metrics=values)
    kept = rule.kept(saved)
    assert kept <= steps
    assert kept >= set(sorted(steps)[-rule.newest :])
    assert rule.kept(entry for entry in saved if entry.step in kept) == kept


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(STEPS, VALUES, RULES)
def test_step_by_step_or_all_at_once_the_same_stay(steps, values, rule):
    kept: list[Entry] = []
    for entry in entries(*sorted(steps), metrics=values):
        survivors = rule.kept([*kept, entry])
        kept = [held for held in [*kept, entry] if held.step in survivors]
    assert {entry.step for entry in kept} == rule.kept(entries(*sorted(steps), metrics=values))
