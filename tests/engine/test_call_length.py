"""How many steps one compiled call holds."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from everstep.engine.call_length import (
    BYTES_PER_CALL,
    BYTES_PER_EAGER_CALL,
    LENGTHS,
    SECONDS_PER_CALL,
    SHORT,
    STEPS_PER_CALL,
    TIMED_CALLS,
    CallLength,
    length_with_fewest_calls,
)


def measured(loop="compiled", seconds=1e-4, compiling=0.0, on_device=False):
    """A plan for steps of this duration; compiling takes no time, so that every length is worth it."""
    call_length = CallLength(loop)
    call_length.record(compiling)
    while call_length.measuring:
        call_length.record(seconds)
    call_length.set_batch(1, on_device)
    return call_length


def plan(call_length, window, left=None, steps_left=None):
    call_length.expect(steps_left)
    left, calls = left or window, []
    while left:
        calls.append(call_length.length(window, left))
        left -= calls[-1]
    return calls


def test_single_steps_until_some_are_timed():
    call_length = CallLength()
    call_length.record(5.0)  # the first one compiles
    for _ in range(TIMED_CALLS):
        assert call_length.measuring
        assert plan(call_length, 5) == [1] * 5
        call_length.record(1e-3)
    assert not call_length.measuring
    assert plan(call_length, 120, steps_left=10**6) == [120]


@pytest.mark.parametrize(
    ("window", "calls"),
    [(468, [156] * 3), (100, [100]), (10, [10]), (300, [150] * 2), (1009, [168] * 6 + [1]), (1, [1]), (7, [7])],
)
def test_a_window_is_a_few_equal_calls(window, calls):
    assert plan(measured(), window) == calls


def test_a_window_of_data_on_the_device_is_one_call():
    assert plan(measured(on_device=True), 468) == [468]
    assert plan(measured(on_device=True), 5000) == [5000]


def test_any_length_if_it_is_not_compiled():
    assert plan(measured("any"), 123) == [100, 23]


def test_single_steps_where_longer_calls_are_slower():
    assert plan(measured("single"), 5) == [1] * 5


def test_a_call_takes_at_most_a_second():
    assert max(plan(measured(seconds=0.05), 100)) == 20
    assert max(plan(measured(seconds=2.0), 100)) == 1
    assert max(plan(measured("any", seconds=0.05), 100)) == 20


def test_a_call_fits_in_memory():
    call_length = measured()
    call_length.set_batch(BYTES_PER_CALL // 50)
    assert max(plan(call_length, 100)) == 50
    call_length.set_batch(BYTES_PER_CALL * 2)
    assert max(plan(call_length, 100)) == 1


def test_where_python_runs_each_step_a_block_fits_in_the_cache():
    call_length = measured("eager")
    call_length.set_batch(BYTES_PER_EAGER_CALL // 20)
    assert max(plan(call_length, 100)) == 20


def test_a_short_run_compiles_nothing_more():
    """50 steps of a millisecond cannot save half a second."""
    call_length = measured(seconds=1e-3, compiling=0.5)
    call_length.length(1, 1)
    assert plan(call_length, 50, steps_left=50) == [1] * 50
    assert plan(call_length, 10, steps_left=50) == [1] * 10
    assert call_length.lengths == [1]


def test_a_long_run_compiles_the_length_of_its_windows_at_once():
    call_length = measured(seconds=1e-3, compiling=0.5)
    call_length.length(1, 1)
    assert plan(call_length, 100, steps_left=1000) == [100]


def test_an_unknown_run_compiles_once_single_steps_have_taken_as_long():
    call_length = measured(seconds=1e-3, compiling=0.5)
    call_length.length(1, 1)
    assert plan(call_length, 100) == [1] * 100
    calls = [plan(call_length, 100) for _ in range(10)]
    assert [100] in calls
    assert calls[:3] == [[1] * 100] * 3
    assert calls[-1] == [100]


def test_what_the_device_takes_saves_nothing():
    """Calls are dispatched ahead: only the time of Python is saved, not that of the device."""
    call_length = CallLength()
    call_length.record(20.0, 20.0)
    while call_length.measuring:
        call_length.record(0.01, 1e-4)
    call_length.length(1, 1)
    assert plan(call_length, 100, steps_left=100_000) == [1] * 100
    assert max(plan(call_length, 100, steps_left=1_000_000)) == 100


def test_a_remainder_uses_what_is_compiled():
    call_length = measured(compiling=0.01)  # as 100 steps
    call_length.length(1, 1)
    assert plan(call_length, 150, steps_left=10**6) == [150]
    assert plan(call_length, 150, left=40, steps_left=10**6) == [1] * 40
    for _ in range(20):
        plan(call_length, 150, left=40)
    assert plan(call_length, 150, left=40) == [SHORT] * 4
    assert call_length.lengths == [1, SHORT, 150]


def test_the_first_window_compiles_no_short_calls():
    """Its first steps were timed, so the best length does not fit; from the next window on it does."""
    call_length = measured(compiling=0.01)
    call_length.length(1, 1)
    assert plan(call_length, 150, left=146, steps_left=10**6) == [1] * 146
    assert plan(call_length, 150, steps_left=10**6) == [150]
    assert call_length.lengths == [1, 150]


def test_short_calls_where_the_best_length_never_fits():
    """As with data whose last batch, unknown beforehand, is short."""
    call_length = measured(compiling=0.01)
    call_length.length(1, 1)
    for _ in range(20):
        calls = plan(call_length, 150, left=149)
    assert calls == [SHORT] * 14 + [1] * 9


def test_evaluation_shares_the_pace_and_compiles_one_program():
    """Its first program may be a long one: something must be compiled in any case."""
    train = measured(compiling=100.0)
    train.length(1, 1)
    validation = CallLength(pace=train.pace)
    assert plan(validation, 78) == [78]
    assert plan(validation, 78) == [78]
    assert train.lengths == [1]


def test_the_end_of_unknown_data_decides_the_first_length():
    call_length = measured(compiling=100.0)
    assert call_length.planned(10_000, 10_000) > 37
    assert call_length.lengths == []
    assert plan(call_length, 10_000, left=37) == [37]


@given(st.integers(1, 5000), st.integers(1, 500))
def test_no_other_length_needs_fewer_calls(window, longest):
    def calls(length):
        return window // length + window % length

    best = length_with_fewest_calls(window, longest)
    assert 1 <= best <= min(longest, window)
    assert calls(best) == min(map(calls, range(1, min(longest, window) + 1)))


@given(
    st.lists(st.tuples(st.integers(1, 3000), st.floats(0, 1), st.none() | st.integers(0, 10**6)), max_size=12),
    st.floats(1e-6, 3),
    st.floats(0, 10),
    st.integers(1, 2 * BYTES_PER_CALL),
    st.booleans(),
    st.sampled_from(["compiled", "any", "eager", "single"]),
)
def test_every_plan_covers_its_window_within_bounds(windows, seconds, compiling, size, on_device, loop):
    """Whatever windows follow each other, some of them in part, calls hold the window, and few lengths are used."""
    call_length = measured(loop, seconds, compiling)
    call_length.set_batch(size, on_device)
    used = set()
    for window, part, steps_left in windows:
        left = max(1, math.ceil(window * part))
        calls = plan(call_length, window, left, steps_left)
        used |= set(calls)
        assert sum(calls) == left
        for length in calls:
            assert length >= 1
            assert length == 1 or length * seconds <= SECONDS_PER_CALL
            assert length == 1 or length * size <= BYTES_PER_CALL
            assert on_device or length <= STEPS_PER_CALL
    if loop == "compiled":
        assert len(used | {1}) <= LENGTHS
        assert set(call_length.lengths) == used
