import pytest
from hypothesis import given
from hypothesis import strategies as st

from everstep.loop.schedule import StepSchedule

LENGTHS = st.integers(1, 12)
INTERVALS = st.none() | st.integers(1, 30)


def ends(windows, start, stop):
    """Returns the ends of the windows that a run from `start` to `stop` passes."""
    found, step = [], start
    while step < stop:
        step = windows.window_end(step)
        found.append(step)
    return found


def varying(length):
    """Returns a length that is another one every ten steps."""
    return lambda step: length + step // 10 % 3


@pytest.mark.parametrize(
    ("length", "interval", "lengths"),
    [(5, 7, [5, 2, 5, 2]), (5, None, [5, 5, 5, 5]), (5, 5, [5, 5, 5, 5]), (10, 4, [4, 4, 4, 4]), (4, 8, [4, 4, 4, 4])],
)
def test_interval_cuts(length, interval, lengths):
    found = [0, *ends(StepSchedule(length, interval), 0, sum(lengths))]
    assert [b - a for a, b in zip(found, found[1:], strict=False)] == lengths


def test_length_may_follow_the_step():
    assert ends(StepSchedule(lambda step: 1 if step < 3 else 10), 0, 20) == [1, 2, 3, 13, 23]
    assert ends(StepSchedule(lambda step: 1 if step < 3 else 10, 8), 0, 20) == [1, 2, 3, 8, 16, 24]


@given(LENGTHS, INTERVALS, st.booleans(), st.integers(0, 200), st.integers(1, 100))
def test_cutting_anywhere_gives_the_same_windows(length, interval, varies, cut, more):
    windows = StepSchedule(varying(length) if varies else length, interval)
    whole = ends(windows, 0, cut + more)
    assert [end for end in whole if end > cut] == ends(windows, cut, cut + more)


@given(LENGTHS, INTERVALS, st.booleans(), st.integers(0, 200))
def test_a_window_is_a_function_of_the_step(length, interval, varies, step):
    windows = StepSchedule(varying(length) if varies else length, interval)
    end = windows.window_end(step)
    assert step < end <= step + length + 2
    assert windows.is_window_end(end)
    assert windows.is_window_end(step) == (step == 0 or windows.window_end(step - 1) == step)
    assert {windows.window_end(inside) for inside in range(step, end)} == {end}


@given(LENGTHS, st.integers(1, 30), st.booleans(), st.integers(1, 10))
def test_windows_end_where_evaluations_are(length, interval, varies, count):
    windows = StepSchedule(varying(length) if varies else length, interval)
    assert windows.is_window_end(interval * count)
