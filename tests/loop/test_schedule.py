import pytest
from hypothesis import given
from hypothesis import strategies as st

from everstep.errors import UsageError
from everstep.loop.config import TrainerConfig
from everstep.loop.schedule import EpochSchedule, StepSchedule

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


# -- what a run asks of its schedule -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("schedule", "steps", "last"),
    [
        (StepSchedule(5), 12, 12),
        (StepSchedule(5), None, None),
        (EpochSchedule(3, 4), 100, 12),
        (EpochSchedule(3, 4), 10, 10),
        (EpochSchedule(3, None), None, None),
    ],
)
def test_the_last_step(schedule, steps, last):
    assert schedule.last_step(steps) == last


def test_fewer_steps_than_a_run_has_trained_are_refused():
    StepSchedule(5).require_reachable(12, 12)
    for schedule, key, received in (
        (StepSchedule(5), "train_steps", 10),
        (StepSchedule(5, epochs=2.5, batches=4), "epochs", 2.5),
    ):
        with pytest.raises(UsageError) as error:
            schedule.require_reachable(12, 10)
        assert (error.value.key, error.value.received) == (f"trainer.{key}", received)


def test_how_far_a_run_is_in_steps_or_in_epochs():
    steps, epochs = StepSchedule(5, 10), EpochSchedule(12, 4)
    assert (steps.position(8), epochs.position(8)) == ("", "epoch:  2/12")
    assert (steps.trained(8), epochs.trained(8), epochs.trained(9)) == ("", "2 epochs done", "in epoch 3")
    assert (steps.reached(48, 48), epochs.reached(48, 48)) == ("is at step 48 of 48", "has done 12 epochs")
    config = TrainerConfig(steps_per_loop=4, validation_interval=8, checkpoint_interval=4)
    assert steps.plan(8, 48, config, "at intervals") == "steps 8 to 48, log every 4, evaluate every 8, save every 4"
    assert epochs.plan(8, 48, config, "at intervals") == (
        "epochs 3 to 12 of 4 steps, evaluate every 2 epochs, save every epoch"
    )


@pytest.mark.parametrize(
    ("schedule", "done"),
    [
        (EpochSchedule(3, 4, None), {0: 0.0, 2: 0.5, 4: 1.0, 9: 2.25, 12: 3.0}),
        (EpochSchedule(3, None, 4), {0: 0.0, 2: 0.5, 4: 1.0, 12: 3.0}),
        (EpochSchedule(6, 4, 10), {4: 1.0, 8: 2.0, 9: 2.5, 10: 3.0, 12: 3.5}),  # of 4, 4 and 2 steps
        (EpochSchedule(3, None), {0: None, 7: None}),
        (StepSchedule(4), {3: None}),
    ],
)
def test_epochs_done(schedule, done):
    assert {step: schedule.epochs_done(step) for step in done} == done


def test_the_length_of_every_epoch():
    assert (EpochSchedule(3, 4).epoch_steps, EpochSchedule(3, None, 5).epoch_steps) == (4, 5)
    assert EpochSchedule(6, 4, 10).epoch_steps is None, "they differ"
    assert (EpochSchedule(3, None).epoch_steps, StepSchedule(4).epoch_steps) == (None, None)
    assert (EpochSchedule(3, 4).total_epochs, StepSchedule(4).total_epochs) == (3, None)


def test_steps_that_were_given_in_epochs_are_told_in_epochs():
    schedule = StepSchedule(5, 10, epochs=12.0, batches=10)
    assert (schedule.total_epochs, schedule.epoch_steps) == (12, 10)
    assert [schedule.position(step) for step in (5, 20, 120)] == [
        "epoch:   0.5/12",
        "epoch:     2/12",
        "epoch:    12/12",
    ]
    assert StepSchedule(10, 20, epochs=12, batches=10).position(20) == "epoch:  2/12"
    assert [schedule.epoch_number(step) for step in (10, 15)] == [1, None]
    assert [schedule.trained(step) for step in (10, 15)] == ["1 epoch done", "in epoch 2"]
    config = TrainerConfig(train_steps=120, steps_per_loop=5, validation_interval=20, checkpoint_interval=10)
    assert schedule.plan(10, 120, config, "at intervals") == (
        "epochs 2 to 12 of 10 steps, log every 5 steps, evaluate every 2 epochs, save every epoch"
    )
    assert schedule.reached(120, 120) == "has done 12 epochs"


@pytest.mark.parametrize("settings", [{}, {"epochs": 2.5, "batches": 10}, {"epochs": 2.0}])
def test_steps_are_told_as_steps_where_no_whole_epochs_were_given(settings):
    schedule = StepSchedule(5, 10, **settings)
    assert (schedule.total_epochs, schedule.epoch_steps, schedule.epoch_number(10)) == (None, None, None)
    assert (schedule.position(10), schedule.trained(10)) == ("", "")
    assert schedule.reached(20, 20) == "is at step 20 of 20"
