"""How many steps one compiled call holds."""

import pytest

from everstep.engine.call_length import BYTES_PER_CALL, LENGTHS, CallLength


def quick(lengths=LENGTHS, seconds=1e-4):
    call_length = CallLength(lengths)
    while call_length.measuring:
        call_length.record(seconds)
    return call_length


def plan(call_length, window):
    left, calls = window, []
    while left:
        calls.append(call_length.length(window, left))
        left -= calls[-1]
    return calls


def test_single_steps_until_one_is_timed():
    call_length = CallLength()
    assert plan(call_length, 5) == [1] * 5
    call_length.record(5.0)  # the first one compiles
    assert call_length.measuring
    call_length.record(1e-3)
    assert not call_length.measuring
    assert plan(call_length, 120) == [100, 10, 10]


@pytest.mark.parametrize(
    ("window", "calls"), [(123, [100, 10, 10, 1, 1, 1]), (100, [100]), (10, [10]), (9, [1] * 9), (300, [100] * 3)]
)
def test_fixed_lengths(window, calls):
    assert plan(quick(), window) == calls


def test_no_fixed_length_for_a_remainder():
    assert quick().length(300, 10) == 1


def test_any_length_if_it_is_not_compiled():
    assert plan(quick(None), 123) == [100, 23]


def test_a_call_takes_at_most_a_second():
    assert max(plan(quick(seconds=0.05), 100)) == 10
    assert max(plan(quick(seconds=2.0), 100)) == 1
    assert max(plan(quick(None, seconds=0.05), 100)) == 20


def test_a_call_fits_in_memory():
    call_length = quick()
    call_length.set_batch_bytes(BYTES_PER_CALL // 50)
    assert max(plan(call_length, 100)) == 10
    call_length.set_batch_bytes(BYTES_PER_CALL * 2)
    assert max(plan(call_length, 100)) == 1
