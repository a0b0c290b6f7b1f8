"""What every Tracker must do; `test_contract.py` runs it on each of them."""

import math
from collections.abc import Callable
from typing import Any

from everstep.tracking.tracker import Tracker

Seen = dict[int, dict[str, float]]
"""What a reader finds: step to names to values."""


def records_each_kind(tracker: Tracker, read: Callable[[], Seen]) -> None:
    tracker.start(0)
    tracker.log(10, {"loss": 0.5, "accuracy": 0.25}, "train")
    tracker.log(10, {"validation_loss": 0.75}, "validation")
    tracker.log(20, {"loss": 0.125}, "train")
    tracker.close()
    assert read() == {10: {"loss": 0.5, "accuracy": 0.25, "validation_loss": 0.75}, 20: {"loss": 0.125}}


def shows_what_was_flushed(tracker: Tracker, read: Callable[[], Seen]) -> None:
    tracker.start(0)
    tracker.log(10, {"loss": 0.5}, "train")
    tracker.flush()
    assert read() == {10: {"loss": 0.5}}
    tracker.log(10, {"validation_loss": 0.75}, "validation")
    tracker.flush()
    assert read() == {10: {"loss": 0.5, "validation_loss": 0.75}}
    tracker.close()


def drops_what_lies_beyond_the_restored_step(make: Callable[[], Tracker], read: Callable[[], Seen]) -> None:
    first = make()
    first.start(0)
    for step in (10, 20, 30):
        first.log(step, {"loss": 1.0}, "train")
        first.log(step, {"validation_loss": 2.0}, "validation")
    first.flush()
    second = make()
    second.start(20)
    second.log(30, {"loss": 0.25}, "train")
    second.log(30, {"validation_loss": 0.5}, "validation")
    second.close()
    first.close()
    old = {"loss": 1.0, "validation_loss": 2.0}
    assert read() == {10: old, 20: old, 30: {"loss": 0.25, "validation_loss": 0.5}}


def begins_anew_at_step_zero(make: Callable[[], Tracker], read: Callable[[], Seen]) -> None:
    for value in (1.0, 0.25):
        tracker = make()
        tracker.start(0)
        tracker.log(5, {"loss": value}, "train")
        tracker.close()
    assert read() == {5: {"loss": 0.25}}


def accepts_every_number(tracker: Tracker, read: Callable[[], Seen], scalar: Any) -> None:
    tracker.start(0)
    values = {"nan": math.nan, "inf": math.inf, "minus_inf": -math.inf, "scalar": scalar}
    tracker.log(1, values, "train")
    tracker.close()
    seen = read()[1]
    assert math.isnan(seen["nan"])
    assert (seen["inf"], seen["minus_inf"], seen["scalar"]) == (math.inf, -math.inf, float(scalar))


def writes_nothing_unless_told(tracker: Tracker, read: Callable[[], Seen]) -> None:
    tracker.start(0)
    tracker.flush()
    tracker.close()
    tracker.close()
    assert read() == {}
