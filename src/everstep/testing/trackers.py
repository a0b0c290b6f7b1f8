"""The contract of a `Tracker`, as checks for any implementation.

    @pytest.mark.parametrize("check", trackers.CHECKS, ids=lambda check: check.__name__)
    def test_contract(check, tmp_path):
        check(lambda: MyTracker(tmp_path), lambda: read(tmp_path))

The first function makes a tracker, as every attempt of a run does; the second reads what they have recorded so far:
step to names to values.
"""

import math
from collections.abc import Callable

import numpy as np

from everstep.tracking import Tracker

Make = Callable[[], Tracker]
Recorded = dict[int, dict[str, float]]
"""What a reader finds: step to names to values."""
Read = Callable[[], Recorded]


def check_records_each_kind(make: Make, read: Read) -> None:
    """Logs of training and of evaluations are all there, also at the same step."""
    tracker = make()
    tracker.start(0)
    tracker.log(10, {"loss": 0.5, "accuracy": 0.25}, "train")
    tracker.log(10, {"validation_loss": 0.75}, "validation")
    tracker.log(20, {"loss": 0.125}, "train")
    tracker.close()
    assert read() == {10: {"loss": 0.5, "accuracy": 0.25, "validation_loss": 0.75}, 20: {"loss": 0.125}}


def check_shows_what_was_flushed(make: Make, read: Read) -> None:
    """After `flush`, readers find everything, while the tracker stays open."""
    tracker = make()
    tracker.start(0)
    tracker.log(10, {"loss": 0.5}, "train")
    tracker.flush()
    assert read() == {10: {"loss": 0.5}}
    tracker.log(10, {"validation_loss": 0.75}, "validation")
    tracker.flush()
    assert read() == {10: {"loss": 0.5, "validation_loss": 0.75}}
    tracker.close()


def check_drops_what_is_beyond_the_restored_step(make: Make, read: Read) -> None:
    """What an attempt logged after the checkpoint that the next one begins at is there once: from the next one."""
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


def check_starts_over_at_step_zero(make: Make, read: Read) -> None:
    """An attempt that begins at step 0 replaces everything."""
    for value in (1.0, 0.25):
        tracker = make()
        tracker.start(0)
        tracker.log(5, {"loss": value}, "train")
        tracker.close()
    assert read() == {5: {"loss": 0.25}}


def check_accepts_every_number(make: Make, read: Read) -> None:
    """NaN and infinities are recorded as such; scalars of NumPy are numbers."""
    tracker = make()
    tracker.start(0)
    values = {"nan": math.nan, "inf": math.inf, "minus_inf": -math.inf, "scalar": np.float32(0.5)}
    tracker.log(1, values, "train")  # type: ignore[arg-type]
    tracker.close()
    recorded = read()[1]
    assert math.isnan(recorded["nan"])
    assert (recorded["inf"], recorded["minus_inf"], recorded["scalar"]) == (math.inf, -math.inf, 0.5)


def check_records_nothing_before_the_first_log(make: Make, read: Read) -> None:
    """An attempt that ends before its first window leaves nothing; closing twice is fine."""
    tracker = make()
    tracker.start(0)
    tracker.flush()
    tracker.close()
    tracker.close()
    assert read() == {}


CHECKS = [
    check_records_each_kind,
    check_shows_what_was_flushed,
    check_drops_what_is_beyond_the_restored_step,
    check_starts_over_at_step_zero,
    check_accepts_every_number,
    check_records_nothing_before_the_first_log,
]
"""All checks; each takes a function that makes a tracker, and one that reads what it has recorded."""
