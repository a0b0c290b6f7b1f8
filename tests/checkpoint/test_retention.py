"""Which checkpoints are kept: a rule over steps, times and metrics."""

import dataclasses
import itertools
import math

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from everstep.checkpoint.retention import Entry, Retention
from everstep.testing.problems import raises_problem


def entries(*steps: int, metrics: dict[int, float] | None = None) -> list[Entry]:
    values = {step: {"accuracy": value} for step, value in (metrics or {}).items()}
    return [Entry(step, 10.0 * step, values.get(step, {}), 20 + step % 7) for step in steps]


def test_the_newest_are_kept():
    assert Retention(2).kept(entries(1, 2, 3, 10)) == {3, 10}


def test_one_per_number_of_steps_is_kept():
    assert Retention(2, every_steps=100).kept(entries(50, 100, 149, 151, 260, 270, 280)) == {50, 151, 260, 270, 280}


def test_one_per_number_of_seconds_is_kept():
    assert Retention(2, every_seconds=40).kept(entries(1, 2, 3, 4, 5, 6, 7)) == {1, 5, 6, 7}


@pytest.mark.parametrize(("mode", "kept"), [("higher", {4, 6, 7}), ("lower", {2, 6, 7})])
def test_the_best_are_kept(mode, kept):
    values = {2: 0.5, 3: 0.7, 4: 0.9, 5: 0.8}
    assert Retention(2, best=1, metric="accuracy", mode=mode).kept(entries(2, 3, 4, 5, 6, 7, metrics=values)) == kept


def test_of_equal_checkpoints_the_older_is_kept():
    rule = Retention(2, best=1, metric="accuracy")
    assert rule.kept(entries(1, 2, 3, 8, 9, metrics={1: 0.5, 2: 0.9, 3: 0.9})) == {2, 8, 9}


@pytest.mark.parametrize("mode", ["higher", "lower"])
@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_values_that_are_not_finite_are_never_the_best(mode, value):
    rule = Retention(2, best=2, metric="accuracy", mode=mode)
    assert rule.kept(entries(1, 2, 8, 9, metrics={1: value, 2: 0.1})) == {2, 8, 9}


@pytest.mark.parametrize("newest", [1, 0, -3])
def test_fewer_than_two_are_refused(newest):
    with raises_problem(key="max_to_keep", received=newest, reason="must be at least 2"):
        Retention(newest)


def test_keeping_the_best_needs_a_metric():
    with raises_problem(key="keep_best", reason="needs the name of a metric", remedy="best_checkpoint_eval_metric"):
        Retention(best=1)


def after_each_save(rule: Retention, steps: int, size: int = 10) -> list[int]:
    kept: set[int] = set()
    for step in range(1, steps + 1):
        kept = rule.kept(Entry(one, size=size) for one in [*kept, step])
    return sorted(kept)


def test_a_ladder_has_every_checkpoint_then_every_second():
    rule = Retention(2, ladder_bytes=80)
    assert after_each_save(rule, 10) == [*range(1, 9), 9, 10]
    assert after_each_save(rule, 20) == [*range(2, 17, 2), 19, 20]


@pytest.mark.parametrize("places", [1, 2, 3, 5, 8, 13])
def test_a_ladder_stays_in_its_bytes_and_leaves_no_large_gap(places):
    for steps in range(places + 2, 120):
        kept = after_each_save(Retention(2, ladder_bytes=10 * places + 9), steps)
        assert kept[-2:] == [steps - 1, steps]
        assert len(kept) == places + 2
        assert max(after - before for before, after in itertools.pairwise([0, *kept])) <= 2.3 * steps / (places + 1)


def test_what_another_rule_keeps_is_not_counted_and_nothing_beside_it_is_needed():
    rule = Retention(2, every_steps=100, ladder_bytes=20)
    kept = rule.kept(Entry(step, size=10) for step in (100, 101, 150, 200, 201, 250, 300))
    assert kept == {100, 150, 200, 250, 300} | {201, 250}


STEPS = st.sets(st.integers(0, 500), max_size=30)
VALUES = st.dictionaries(st.integers(0, 500), st.floats(width=16))
RULES = st.builds(
    Retention,
    newest=st.integers(2, 5),
    every_steps=st.none() | st.integers(1, 90),
    every_seconds=st.none() | st.floats(1, 900),
    ladder_bytes=st.none() | st.integers(1, 300),
    best=st.integers(0, 3),
    metric=st.just("accuracy"),
    mode=st.sampled_from(["higher", "lower"]),
)


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(STEPS, VALUES, RULES)
def test_the_rule_is_idempotent_and_keeps_the_newest(steps, values, rule):
    saved = entries(*sorted(steps), metrics=values)
    kept = rule.kept(saved)
    assert kept <= steps
    assert kept >= set(sorted(steps)[-rule.newest :])
    assert rule.kept(entry for entry in saved if entry.step in kept) == kept


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(STEPS, VALUES, RULES)
def test_applying_the_rule_step_by_step_or_at_once_keeps_the_same(steps, values, rule):
    rule = dataclasses.replace(rule, ladder_bytes=None)  # which rungs a ladder has depends on when it was full
    kept: list[Entry] = []
    for entry in entries(*sorted(steps), metrics=values):
        survivors = rule.kept([*kept, entry])
        kept = [held for held in [*kept, entry] if held.step in survivors]
    assert {entry.step for entry in kept} == rule.kept(entries(*sorted(steps), metrics=values))
