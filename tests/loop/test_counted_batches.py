"""Data of unknown length: the first pass counts its batches, and the run ends where its epochs do."""

import math
from types import SimpleNamespace

import pytest

from everstep.errors import DivergedError
from everstep.loop.controller import Controller
from everstep.loop.hooks import Hook
from everstep.loop.recovery import Recovery
from everstep.loop.schedule import EpochSchedule
from everstep.testing.problems import raises_problem
from everstep.tracking.tracker import MemoryTracker

from .samples import MemoryCheckpointer, SavedCounter


class Counting(SavedCounter):
    """Its data has so many batches, which is known when a pass has ended; it can be repeated, or read once."""

    def __init__(self, batches, repeat=True):
        super().__init__()
        self.batches, self.train_stream = batches, SimpleNamespace(batches_per_epoch=None, repeat=repeat)

    def train(self, num_steps, *, after_call, **calls):
        left = self.batches - self.global_step
        if self.train_stream.batches_per_epoch is not None or num_steps <= left:
            return super().train(num_steps)
        logs = super().train(left)
        if after_call(self.global_step):  # else it does not look for more
            self.train_stream.batches_per_epoch = self.batches
        return logs

    def finish_counting(self):
        self.events.append(f"look for the end at {self.global_step}")
        if self.global_step == self.batches:
            self.train_stream.batches_per_epoch = self.batches
        return self.global_step == self.batches


class Counted(Hook):
    """Notes where batches were counted."""

    def __init__(self):
        self.steps = []

    def on_batches_counted(self, step):
        self.steps.append(step)


def train(trainer, schedule, hook=None, steps=None, **settings):
    hooks = [hook or Counted()]
    given = {"schedule": schedule, "hooks": hooks, "checkpointer": MemoryCheckpointer(), **settings}
    controller = Controller(trainer=trainer, **given)
    controller.train(steps)
    return controller


def test_the_first_epoch_ends_with_the_data_and_the_others_are_as_long(caplog):
    trainer, hook = Counting(7), Counted()
    train(trainer, EpochSchedule(3, None), hook)
    assert (trainer.global_step, hook.steps, caplog.text) == (21, [7], "")
    assert [event for event in trainer.events if event.startswith("train")] == ["train 7"] * 3


def test_epochs_of_some_steps_are_cut_where_the_data_ends():
    trainer, hook = Counting(7), Counted()
    train(trainer, EpochSchedule(4, 3), hook)
    assert trainer.events == [
        *["train 3", "look for the end at 3", "train 3", "look for the end at 6"],
        *["train 1", "train 3", "save 10"],
    ]
    assert hook.steps == [7]


def test_an_epoch_that_ends_with_the_data_is_followed_by_a_whole_one():
    trainer, hook = Counting(6), Counted()
    train(trainer, EpochSchedule(3, 4), hook)
    assert trainer.events[-3:] == ["train 2", "train 4", "save 10"]
    trainer, hook = Counting(8), Counted()
    train(trainer, EpochSchedule(3, 4), hook)
    assert trainer.events[-3:] == ["look for the end at 8", "train 4", "save 12"]
    assert hook.steps == []  # the window had ended already


def test_data_that_can_be_read_only_once_ends_the_run_with_a_warning():
    trainer = Counting(7, repeat=False)
    with pytest.warns(UserWarning, match="ran out of data"):
        controller = train(trainer, EpochSchedule(3, 7))
    assert (controller.step, controller.stopped) == (7, "the data ended: it can be read only once")
    trainer = Counting(7, repeat=False)
    controller = train(trainer, EpochSchedule(1, None))
    assert (controller.step, controller.stopped) == (7, "")


def test_a_loss_that_is_not_finite_is_noticed_though_the_run_ends_with_the_data():
    """The logs of its last window are not read when it has ended: until then there was nothing to read them for."""

    class Spoiled(Counting):
        def train(self, num_steps, **calls):
            super().train(num_steps, **calls)
            return {"training_loss": math.nan if self.global_step == 8 else 1.0}

    with pytest.warns(UserWarning, match="ran out of data"), raises_problem(DivergedError, reason="nan at step 8"):
        train(Spoiled(8, repeat=False), EpochSchedule(3, 4), recovery=Recovery(max_trials=0))


def test_an_epoch_that_was_interrupted_at_the_end_of_the_data_is_finished_by_the_next_attempt():
    checkpointer, tracker, trainer = MemoryCheckpointer(), MemoryTracker(), Counting(7)
    with pytest.raises(SystemExit):
        train(
            first := Counting(7),
            EpochSchedule(2, None),
            checkpointer=checkpointer,
            stop_requested=lambda: SystemExit(143) if first.global_step == 7 else None,
        )
    controller = Controller(
        trainer=trainer, schedule=EpochSchedule(2, None), checkpointer=checkpointer, tracker=tracker
    )
    controller.restore_checkpoint()
    controller.train(None)
    assert [point.step for point in tracker.points] == [7, 14]


def test_a_run_that_is_stopped_does_not_wait_for_the_end_of_the_data():
    class Stopping(Hook):
        def on_window_end(self, step, logs):
            self.controller.stop("enough")

    trainer = Counting(9)
    train(trainer, EpochSchedule(3, 3), Stopping())
    assert trainer.events == ["train 3", "save 3"]


def test_no_more_steps_are_trained_than_specified():
    trainer = Counting(7)
    train(trainer, EpochSchedule(3, None), steps=16)
    assert trainer.global_step == 16


class LastSteps(Hook):
    """Notes the last steps."""

    def __init__(self):
        self.steps = []

    def on_last_step(self, step):
        self.steps.append(step)


@pytest.mark.filterwarnings("ignore:Your input ran out of data")
@pytest.mark.parametrize("steps", [3, 4], ids=["between two epochs", "inside one"])
def test_data_that_can_be_read_once_ends_training_with_a_save_and_its_hooks(steps):
    trainer, hook = Counting(6, repeat=False), LastSteps()
    controller = train(trainer, EpochSchedule(5, steps), hook)
    assert (trainer.global_step, hook.steps, trainer.events[-1]) == (6, [6], "save 6")
    assert controller.checkpointer.latest() == 6
