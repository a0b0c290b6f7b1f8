"""A run that is left before its target, by a trainer that only counts: what is saved, and what happens next."""

import pytest
from tests.pretended_gang import Board, Pretended

from everstep.checkpoint.checkpointer import SaveError
from everstep.engine import FeedInterrupted
from everstep.loop import controller
from everstep.loop.controller import Controller
from everstep.loop.hooks import Hook
from everstep.loop.recovery import Recovery
from everstep.tracking.tracker import MemoryTracker

from .samples import MemoryCheckpointer, SavedCounter, SlowCheckpointer


class Stopped(SystemExit):
    pass


class InCalls(SavedCounter):
    """Trains and evaluates one batch a call, and asks the loop after each; one step has to wait for its data."""

    def __init__(self, slow_step=None, failing_step=None):
        super().__init__()
        self.slow_step, self.failing_step = slow_step, failing_step

    def train(self, num_steps, *, new_window, after_call, may_wait, **calls):
        self.events.append(f"train {num_steps}{'' if new_window else ' more'}")
        end = self.global_step + num_steps
        while self.global_step < end:
            if self.global_step == self.slow_step and not may_wait():
                break
            self.global_step += 1
            if not after_call(self.global_step):
                break
        return {"training_loss": 1 / self.global_step}

    def window_logs(self):
        return {"training_loss": 1 / self.global_step}

    def evaluate(self, num_steps, *, before_call, after_call, **calls):
        for batch in range(3):
            if before_call is not None:
                before_call(batch)
            if self.global_step == self.failing_step:
                raise RuntimeError("the evaluation failed")
            if not after_call(batch + 1):
                break
        return super().evaluate(num_steps)


class Attempt:
    """One attempt at a run in windows of five steps."""

    def __init__(self, checkpointer=None, trainer=None, stop_at=None, hooks=(), **settings):
        self.trainer, self.tracker = trainer or InCalls(), MemoryTracker()
        self.controller = Controller(
            trainer=self.trainer,
            evaluator=self.trainer,
            steps_per_loop=5,
            checkpointer=checkpointer,
            tracker=self.tracker,
            hooks=hooks,
            **{"stop_requested": lambda: Stopped(143) if self.controller.step == stop_at else None, **settings},
        )
        if checkpointer is not None:
            self.controller.restore_checkpoint()

    def logged(self):
        return [point.step for point in self.tracker.points if point.kind == "train"]


class AtStep(Hook):
    """Calls a method of the controller after a compiled call."""

    def __init__(self, step, call):
        self.step, self.call = step, call

    def on_call_end(self, step):
        if step == self.step:
            self.call(self.controller)


def test_a_run_that_is_stopped_for_good_ends_its_window_with_the_current_call(caplog):
    checkpointer = MemoryCheckpointer()
    attempt = Attempt(checkpointer, hooks=[AtStep(7, lambda controller: controller.stop("enough"))])
    attempt.controller.train(20)
    assert (attempt.logged(), checkpointer.steps()) == ([5, 7], [7])
    assert caplog.text == ""  # there is nothing to warn of


def test_an_interrupted_run_ends_with_the_current_call_and_continues_its_window(caplog):
    checkpointer = MemoryCheckpointer()
    first = Attempt(checkpointer, stop_at=7)
    with pytest.raises(Stopped):
        first.controller.train(20)
    assert (first.logged(), checkpointer.steps()) == ([5], [7])
    assert caplog.text == ""
    second = Attempt(checkpointer)
    second.controller.train(20)
    assert second.trainer.events == ["train 3 more", "train 5", "train 5", "save 20"]
    assert second.logged() == [10, 15, 20]


def test_a_window_that_was_done_when_the_run_was_interrupted_is_only_finished():
    checkpointer = MemoryCheckpointer()
    first = Attempt(checkpointer, stop_at=10)
    with pytest.raises(Stopped):
        first.controller.train(20)
    assert (first.logged(), checkpointer.steps()) == ([5], [10])
    second = Attempt(checkpointer)
    second.controller.train(15)
    assert second.trainer.events == ["save 10", "train 5", "save 15"]
    assert second.logged() == [10, 15]


@pytest.mark.parametrize(("steps", "events", "logged"), [(7, ["save 7"], [7]), (10, ["train 3 more", "save 10"], [10])])
def test_a_window_that_was_the_last_one_is_finished_or_continued_if_the_run_is_made_longer(steps, events, logged):
    checkpointer = MemoryCheckpointer()
    with pytest.raises(Stopped):
        Attempt(checkpointer, stop_at=7).controller.train(7)
    second = Attempt(checkpointer)
    second.controller.train(steps)
    assert second.trainer.events == events
    assert second.logged() == logged


@pytest.mark.parametrize("trials", [-1, 0])
def test_a_window_that_is_being_finished_when_the_run_is_interrupted_is_finished_once(trials):
    checkpointer, recovery = MemoryCheckpointer(), Recovery(max_trials=trials)
    first = Attempt(
        checkpointer, recovery=recovery, stop_requested=lambda: Stopped(143) if first.logged() == [5] else None
    )
    with pytest.raises(Stopped):
        first.controller.train(10)
    second = Attempt(checkpointer)
    second.controller.train(10)
    assert second.trainer.events == ["train 5", "save 10"]
    assert second.logged() == [10]


def test_steps_of_an_earlier_attempt_count_neither_as_trained_nor_as_time():
    checkpointer = MemoryCheckpointer()
    with pytest.raises(Stopped):
        Attempt(checkpointer, stop_at=10).controller.train(10)
    second = Attempt(checkpointer)
    second.controller.train(10)
    steps, seconds = second.controller.training_time
    assert (steps, round(seconds)) == (0, 0)


def test_a_run_that_waits_for_data_waits_until_it_is_interrupted():
    checkpointer = MemoryCheckpointer()
    with pytest.raises(Stopped):
        Attempt(checkpointer, InCalls(slow_step=7), stop_at=7).controller.train(20)
    waiting = Attempt(trainer=InCalls(slow_step=7))
    waiting.controller.train(20)
    assert (checkpointer.steps(), waiting.trainer.global_step) == ([7], 20)


@pytest.mark.parametrize("step", [7, 10], ids=["in a window", "between two"])
def test_of_several_processes_none_stops_before_all_have_agreed(monkeypatch, step):
    monkeypatch.setattr(controller, "current_gang", lambda: Pretended(0, 2, Board()))
    attempt = Attempt(stop_at=step, stop_agreed=lambda: None)
    attempt.controller.train(10)
    assert attempt.trainer.events == ["train 5", "train 5"]


def test_of_several_processes_each_ends_its_window_where_training_is_stopped_for_good(monkeypatch):
    monkeypatch.setattr(controller, "current_gang", lambda: Pretended(0, 2, Board()))
    attempt = Attempt(hooks=[AtStep(7, lambda controller: controller.stop("enough"))])
    attempt.controller.train(20)
    assert attempt.logged() == [5, 7]


# -- evaluations that fail or are broken off ---------------------------------------------------------------------------


class LastStep(Hook):
    """Notes the last step among the events of the trainer."""

    def on_last_step(self, step):
        self.controller.trainer.events.append(f"last step {step}")


@pytest.mark.parametrize(
    ("failing", "again"),
    [
        (5, ["evaluate 5", "save 5", "train 5", "last step 10", "save 10", "evaluate 10", "save 10"]),
        (10, ["last step 10", "evaluate 10", "save 10"]),
    ],
)
def test_a_failed_evaluation_has_its_step_saved_and_is_repeated(failing, again):
    checkpointer = SlowCheckpointer()
    first = Attempt(checkpointer, InCalls(failing_step=failing), hooks=[LastStep()])
    with pytest.raises(RuntimeError, match="the evaluation failed"):
        first.controller.train_and_evaluate(10, eval_interval=5)
    assert checkpointer.steps() == [failing]  # it is written when the error arrives
    second = Attempt(checkpointer, hooks=[LastStep()])
    second.controller.train_and_evaluate(10, eval_interval=5)
    assert second.trainer.events == again
    third = Attempt(checkpointer, hooks=[LastStep()])
    third.controller.train_and_evaluate(10, eval_interval=5)
    assert third.trainer.events == []


def test_a_step_that_was_saved_before_its_evaluation_is_not_saved_again_if_that_fails():
    attempt = Attempt(MemoryCheckpointer(), InCalls(failing_step=5))
    with pytest.raises(RuntimeError, match="the evaluation failed"):
        attempt.controller.train_and_evaluate(5)
    assert attempt.trainer.events == ["train 5", "save 5"]


def test_the_error_of_an_evaluation_is_raised_even_if_the_step_cannot_be_saved():
    checkpointer = SlowCheckpointer(SaveError("the disk is full"))
    with pytest.raises(RuntimeError, match="the evaluation failed"):
        Attempt(checkpointer, InCalls(failing_step=5)).controller.train_and_evaluate(10, eval_interval=5)


@pytest.mark.parametrize(("stop_at", "error"), [(None, FeedInterrupted), (0, Stopped)])
def test_an_evaluation_whose_data_is_interrupted_ends_with_the_stop_that_was_requested(stop_at, error):
    class Waiting(InCalls):
        def evaluate(self, num_steps, **calls):
            raise FeedInterrupted

    with pytest.raises(error):
        Attempt(trainer=Waiting(), stop_at=stop_at).controller.evaluate()


def test_an_evaluation_that_fails_before_the_first_step_saves_nothing():
    attempt = Attempt(MemoryCheckpointer(), InCalls(failing_step=0))
    with pytest.raises(RuntimeError, match="the evaluation failed"):
        attempt.controller.evaluate()
    assert attempt.controller.checkpointer.steps() == []


def test_an_evaluation_that_fails_saves_nothing_where_nothing_is_trained():
    evaluator, checkpointer = InCalls(failing_step=5), MemoryCheckpointer()
    evaluator.global_step = 5
    with pytest.raises(RuntimeError, match="the evaluation failed"):
        Controller(evaluator=evaluator, checkpointer=checkpointer).evaluate()
    assert checkpointer.steps() == []


class Watching(Hook):
    """Counts the batches of evaluations, and has their number as its state."""

    name, watches_evaluation_batches = "watching", True

    def __init__(self, until=9):
        self.begun, self.ended, self.until = 0, 0, until

    def on_evaluation_batch_begin(self, done):
        self.begun += 1

    def on_evaluation_batch_end(self, done):
        self.ended += 1
        return self.ended < self.until

    def state(self):
        return {}, self.ended

    def restore(self, arrays, meta):
        self.ended = meta


def test_a_hook_that_watches_an_evaluation_which_is_broken_off_begins_anew_with_the_next_attempt():
    checkpointer, hook, again = MemoryCheckpointer(), Watching(), Watching()

    def stop_in_second_batch():
        return Stopped(143) if hook.ended == 4 else None

    first = Controller(
        trainer=(trainer := InCalls()),
        evaluator=trainer,
        steps_per_loop=5,
        checkpointer=checkpointer,
        stop_requested=stop_in_second_batch,
        hooks=[hook],
    )
    with pytest.raises(Stopped):
        first.train_and_evaluate(20, eval_interval=5)
    assert (hook.begun, checkpointer.restore()[1]["parts"]["watching"]) == (5, 3)
    Attempt(checkpointer, hooks=[again]).controller.train_and_evaluate(10, eval_interval=5)
    assert (again.ended, checkpointer.restore()[1]["parts"]["watching"]) == (6, 6)


def test_a_hook_that_watches_an_evaluation_may_end_it():
    attempt = Attempt(hooks=[hook := Watching(until=2)])
    attempt.controller.evaluate()
    assert (hook.begun, hook.ended) == (2, 2)
