"""The outer loop, driven by a trainer that only counts."""

import contextlib
import functools
import logging
import math
import random
import threading
import time
from collections.abc import Mapping
from types import SimpleNamespace

import numpy as np
import pytest

from everstep.errors import TrainingError, UsageError
from everstep.loop import random_state
from everstep.loop.action_hook import Actions
from everstep.loop.controller import Controller, LoopProgress, Phase
from everstep.loop.hooks import Hook
from everstep.loop.lazy_logs import LazyLogs
from everstep.loop.recovery import Recovery
from everstep.loop.schedule import StepSchedule
from everstep.testing.problems import raises_problem
from everstep.tracking.tracker import MemoryTracker

from .samples import MemoryCheckpointer, SavedCounter


def control(trainer, actions=None, hooks=(), **kwargs):
    hooks = [*([actions] if actions else []), *hooks]
    return Controller(trainer=trainer, evaluator=trainer, hooks=hooks, **{"steps_per_loop": 5, **kwargs})


def test_train_and_evaluate_are_all_a_trainer_needs():
    trainer = SavedCounter()
    assert control(trainer).train_and_evaluate(10)["validation_loss"] == 10
    assert trainer.events == ["train 5", "train 5", "evaluate 10"]


def test_train_steps_are_absolute():
    trainer = SavedCounter()
    controller = control(trainer)
    assert controller.train(12)["training_loss"] == 1 / 12
    assert controller.train(12) == {}
    controller.train(17)
    assert trainer.events == ["train 5", "train 5", "train 2", "train 3", "train 2"]


def test_evaluations_cut_the_loops():
    trainer = SavedCounter()
    logs = control(trainer).train_and_evaluate(17, eval_interval=7)
    trained = ["train 5", "train 2", "evaluate 7", "train 5", "train 2", "evaluate 14", "train 3", "evaluate 17"]
    assert trainer.events == trained
    assert logs["validation_loss"] == 17


def test_evaluates_once_where_interval_and_end_meet():
    trainer = SavedCounter()
    control(trainer).train_and_evaluate(10, eval_interval=10)
    assert trainer.events.count("evaluate 10") == 1


@pytest.mark.parametrize("steps", [-1, 1, 2])
def test_evaluates_so_many_batches(steps):
    trainer = SavedCounter()
    assert control(trainer).evaluate(steps)["validation_loss"] == 0
    assert trainer.events == ["evaluate 0"]


@pytest.mark.parametrize("steps", [0, -2])
def test_no_other_number_of_batches_is_evaluated(steps):
    trainer = SavedCounter()
    with pytest.raises(UsageError) as error:
        control(trainer).evaluate(steps)
    assert (error.value.key, error.value.received) == ("trainer.validation_steps", steps)
    assert trainer.events == []


@pytest.mark.parametrize("method", ["train", "train_and_evaluate"])
def test_a_schedule_takes_the_place_of_steps_per_loop(method):
    trainer = SavedCounter()
    getattr(control(trainer, schedule=StepSchedule(4)), method)(8)
    assert trainer.events[:2] == ["train 4", "train 4"]


@pytest.mark.parametrize(
    ("interval", "saved"),
    [(0, [23]), (5, [5, 10, 15, 20, 23]), (7, [10, 15, 23]), (10, [10, 20, 23]), (12, [15, 23]), (100, [23])],
)
def test_saves_at_the_first_loops_end_after_each_multiple(interval, saved):
    checkpointer = MemoryCheckpointer()
    control(SavedCounter(), checkpointer=checkpointer, checkpoint_interval=interval).train(23)
    assert checkpointer.steps() == saved


class Flushed(MemoryTracker):
    """Counts the points that are safe from a kill."""

    safe = 0

    def flush(self):
        self.safe = len(self.points)


def test_what_was_logged_is_written_before_a_step_is_saved():
    class Noting(MemoryCheckpointer):
        def save(self, step, *rest):
            super().save(step, *rest)
            written.append((step, tracker.safe))

    tracker, written = Flushed(), []
    control(SavedCounter(), checkpointer=Noting(), checkpoint_interval=5, tracker=tracker).train(10)
    assert written == [(5, 1), (10, 2)]


def test_a_step_that_is_saved_is_not_saved_again():
    trainer = SavedCounter()
    controller = control(trainer, checkpointer=MemoryCheckpointer())
    controller.train(5)
    controller.save_checkpoint()
    assert trainer.events == ["train 5", "save 5"]


def test_no_save_at_completion_if_switched_off():
    checkpointer = MemoryCheckpointer()
    control(SavedCounter(), checkpointer=checkpointer).train(10, checkpoint_at_completion=False)
    assert checkpointer.steps() == []


def test_order_log_act_evaluate_act_save():
    trainer, tracker = SavedCounter(), MemoryTracker()
    events = trainer.events

    class Trained(Hook):
        def on_last_step(self, step):
            events.append("trained")

    def logged(kind):
        return len([point for point in tracker.points if point.kind == kind])

    controller = control(
        trainer,
        checkpointer=MemoryCheckpointer(),
        tracker=tracker,
        actions=Actions(
            [lambda logs: events.append(f"act on {logs['training_loss']}, logged {logged('train')}")],
            [lambda logs: events.append(f"act on {logs['validation_loss']}")],
        ),
        hooks=[Trained()],
    )
    controller.train_and_evaluate(5)
    acted = ["act on 0.2, logged 1", "trained", "save 5", "evaluate 5", "act on 5.0", "save 5"]
    assert events == ["train 5", *acted]  # also before the last evaluation: if it fails, no training is lost


class Recorded(Hook):
    """Notes each event with its arguments, but no logs."""

    def __init__(self):
        self.events = []
        for name in dir(Hook):
            if name.startswith("on_"):
                setattr(self, name, functools.partial(self.note, name))

    def note(self, event, *arguments):
        self.events.append((event, *(value for value in arguments if not isinstance(value, Mapping))))


def test_the_events_of_a_run():
    hook = Recorded()
    controller = control(SavedCounter(), hooks=[hook], checkpointer=MemoryCheckpointer())
    controller.restore_checkpoint()
    controller.train_and_evaluate(10, 3)
    begin = [("on_restore", None), ("on_train_begin",), ("on_ready",)]
    windows = [("on_window_begin", 0), ("on_window_end", 5), ("on_window_begin", 5), ("on_window_end", 10)]
    evaluation = [("on_save", 10), ("on_evaluation_begin", 10, 3), ("on_evaluation_end", 10), ("on_save", 10)]
    assert hook.events == [*begin, *windows, ("on_last_step", 10), *evaluation, ("on_exit", None)]


def test_the_events_of_a_run_that_has_nothing_left_to_do():
    hook, checkpointer = Recorded(), MemoryCheckpointer()
    control(SavedCounter(), checkpointer=checkpointer).train_and_evaluate(10)
    again = control(SavedCounter(), hooks=[hook], checkpointer=checkpointer)
    again.restore_checkpoint()
    again.train_and_evaluate(10)
    assert hook.events == [("on_restore", 10), ("on_train_begin",), ("on_ready",), ("on_exit", None)]


def test_hooks_are_given_the_error_that_ends_a_run():
    hook, trainer, error = Recorded(), SavedCounter(), RuntimeError("no step")

    def failing(*arguments, **calls):
        raise error

    trainer.train = failing
    with pytest.raises(RuntimeError, match="no step"):
        control(trainer, hooks=[hook]).train(5)
    assert hook.events[-1] == ("on_exit", error)


def test_all_steps_of_an_attempt_count_for_its_speed():
    controller, begin = control(SavedCounter()), time.perf_counter()
    controller.train(12)
    controller.train(17)
    steps, seconds = controller.training_time
    assert steps == 17
    assert 0 < seconds < time.perf_counter() - begin + 1


class Tried(SavedCounter):
    """Changes its variables, and draws, while it evaluates; evaluates two batches at most."""

    evaluated_batches = 2

    def __init__(self):
        super().__init__()
        self.variables = {"seen": 0}
        self.engine = SimpleNamespace(state=lambda: dict(self.variables), load=self.variables.update)

    def evaluate(self, num_steps, **calls):
        self.variables["seen"] += 1
        random.random(), np.random.normal()
        return super().evaluate(num_steps)


def test_an_evaluation_that_is_only_tried_changes_nothing_and_says_how_many_batches_there_were():
    trainer, generators = Tried(), random_state.get()
    assert control(trainer).try_evaluation(3) == 2
    assert trainer.events == ["evaluate 0"]
    assert (trainer.variables, random_state.get()) == ({"seen": 0}, generators)


class Device(SavedCounter):
    """Records when its logs are read; its weight is NaN from a step on."""

    def __init__(self, nan_at=100):
        super().__init__()
        self.nan_at = nan_at

    def train(self, num_steps, **calls):
        logs, step = super().train(num_steps), self.global_step
        return LazyLogs(lambda: self.events.append(f"waited for {step}") or logs)

    def state(self, into=None):
        weight = np.nan if self.global_step >= self.nan_at else 1.0
        return {**super().state()[0], "weight": np.array(weight)}, {"step": self.global_step}


def events_of_training(trainer, **kwargs):
    """Trains 10 steps, saved at 6, evaluated at the end; returns the events after the first window."""
    checked = {"checkpointer": MemoryCheckpointer(), "checkpoint_interval": 6, "recovery": Recovery(max_trials=0)}
    control(trainer, steps_per_loop=2, **checked, **kwargs).train_and_evaluate(10)
    return trainer.events[1:]


def test_what_reads_or_changes_the_keras_objects_has_the_current_state_and_draws_alone():
    class Noting(SavedCounter):
        def push(self):
            self.events.append("push")

        def pull(self):
            self.events.append("pull")

        @contextlib.contextmanager
        def prefetch_paused(self):
            self.events.append("pause")
            yield
            self.events.append("read ahead")

    trainer = Noting()
    with control(trainer).synced():
        trainer.events.append("change")
    assert trainer.events == ["pause", "push", "change", "pull", "read ahead"]


def test_a_device_is_given_its_state_back_while_it_still_computes():
    """What acts at the end of a window reads the Keras objects: copying to them does not wait for the logs."""

    class Pushed(Device):
        def push(self):
            self.events.append("push")

    trainer = Pushed()
    control(trainer, Actions([lambda logs: None]), recovery=Recovery(max_trials=0)).train(5)
    assert trainer.events[:3] == ["train 5", "push", "waited for 5"]


@pytest.mark.parametrize("trials", [0, -1], ids=["fails if it diverges", "goes on if it diverges"])
def test_logs_are_read_before_an_evaluation_also_where_nothing_is_saved(trials):
    trainer = Device()
    control(trainer, recovery=Recovery(max_trials=trials)).train_and_evaluate(15, eval_interval=10)
    window = ["train 5", "waited for 15", "evaluate 15"]
    assert trainer.events == ["train 5", "train 5", "waited for 5", "waited for 10", "evaluate 10", *window]


def test_no_wait_for_the_device_if_nothing_is_due():
    events = events_of_training(Device())
    assert events[:2] == ["train 2", "train 2"]
    saved = ["waited for 2", "waited for 4", "waited for 6", "save 6"]
    assert events[2:6] == saved
    closing = ["save 10", "save 10", "evaluate 10", "save 10"]  # the first one checks the state
    assert events[6:] == ["train 2", "train 2", "waited for 8", "waited for 10", *closing]


def test_the_state_is_not_read_where_nothing_is_saved():
    trainer = Device()
    trainer.non_finite = lambda state=None: trainer.events.append("read the state") or []
    control(trainer, Actions([lambda logs: None]), recovery=Recovery(max_trials=1)).train_and_evaluate(5)
    assert trainer.events == ["train 5", "waited for 5", "evaluate 5"]


def test_logs_and_state_are_checked_before_actions():
    trainer = Device()
    events = events_of_training(trainer, actions=Actions([lambda logs: trainer.events.append("act")]))
    assert events[:4] == ["waited for 2", "act", "train 2", "waited for 4"]
    assert events[-6:] == ["waited for 10", "save 10", "act", "save 10", "evaluate 10", "save 10"]


@pytest.mark.parametrize("nan_at", [6, 10])
def test_a_diverged_state_is_neither_acted_on_nor_evaluated(nan_at):
    """The first `save` checks the state."""
    trainer = Device(nan_at)
    with raises_problem(TrainingError, reason=f"weight is not finite after step {nan_at}"):
        events_of_training(trainer, actions=Actions([lambda logs: trainer.events.append("act")]))
    assert trainer.events[-2:] == [f"waited for {nan_at}", f"save {nan_at}"]


def test_the_state_is_checked_before_the_final_evaluation_of_a_stopped_run():
    """An action stops it where nothing was due."""
    trainer = Device(nan_at=4)
    given = {"checkpointer": MemoryCheckpointer(), "recovery": Recovery(max_trials=0), "steps_per_loop": 2}
    controller = control(
        trainer, Actions([lambda logs: trainer.global_step == 4 and controller.stop("enough")]), **given
    )
    with raises_problem(TrainingError, reason="weight is not finite after step 4"):
        controller.train_and_evaluate(10)
    assert "evaluate 4" not in trainer.events


def test_an_evaluation_is_timed():
    begin = time.perf_counter()
    assert 0 <= control(SavedCounter()).evaluate()["eval_seconds"] < time.perf_counter() - begin + 1


def test_actions_may_add_to_the_evaluations_logs():
    tracker = MemoryTracker()
    actions = Actions(evaluation=[lambda logs: logs.update(best=np.float32(3))])
    controller = control(SavedCounter(), actions, tracker=tracker)
    assert controller.evaluate()["best"] == 3
    assert tracker.points[-1].logs["best"] == 3


def test_saved_evaluations_are_plain_numbers():
    checkpointer = MemoryCheckpointer()
    actions = Actions(evaluation=[lambda logs: logs.update(best=np.float32(3), worst=np.array(math.nan))])
    control(SavedCounter(), actions, checkpointer=checkpointer).train_and_evaluate(5)
    saved = checkpointer.restore()[1]["evaluated"]
    assert saved["step"] == 5
    assert all(type(value) is float for value in saved["logs"].values())


def test_resume_repeats_nothing():
    checkpointer = MemoryCheckpointer()
    control(SavedCounter(), checkpointer=checkpointer).train_and_evaluate(8, eval_interval=4)
    trainer = SavedCounter()
    controller = control(trainer, checkpointer=checkpointer)
    assert controller.restore_checkpoint() == 8
    logs = controller.train_and_evaluate(12, eval_interval=4)
    assert trainer.events == ["train 4", "save 12", "evaluate 12", "save 12"]
    assert logs["validation_loss"] == 12


def test_finished_run_again_returns_its_evaluation():
    checkpointer = MemoryCheckpointer()
    first = control(SavedCounter(), checkpointer=checkpointer).train_and_evaluate(8)
    trainer = SavedCounter()
    controller = control(trainer, checkpointer=checkpointer)
    controller.restore_checkpoint()
    assert controller.train_and_evaluate(8) == first
    assert trainer.events == []


def test_finished_run_that_was_never_evaluated_is():
    checkpointer = MemoryCheckpointer()
    control(SavedCounter(), checkpointer=checkpointer).train(8)
    trainer = SavedCounter()
    controller = control(trainer, checkpointer=checkpointer)
    controller.restore_checkpoint()
    assert controller.train_and_evaluate(8)["validation_loss"] == 8
    assert trainer.events == ["evaluate 8"]


def test_nothing_to_restore():
    assert control(SavedCounter(), checkpointer=MemoryCheckpointer()).restore_checkpoint() is None
    with raises_problem(reason="keeps no checkpoints"):
        control(SavedCounter()).restore_checkpoint(3)


def test_stop_finishes_the_step():
    trainer, checkpointer = SavedCounter(), MemoryCheckpointer()
    actions = Actions([lambda logs: trainer.global_step == 10 and controller.stop("enough")])
    controller = control(trainer, actions, checkpointer=checkpointer)
    assert controller.train_and_evaluate(50)["validation_loss"] == 10
    assert trainer.events == ["train 5", "train 5", "save 10", "evaluate 10", "save 10"]
    assert controller.stopped == "enough"


def test_a_run_that_an_evaluation_stops_is_saved_though_no_save_is_due():
    checkpointer = MemoryCheckpointer()
    controller = control(
        SavedCounter(), Actions(evaluation=[lambda logs: controller.stop("enough")]), checkpointer=checkpointer
    )
    controller.train_and_evaluate(50, eval_interval=10)
    assert (checkpointer.steps(), controller.stopped) == ([10], "enough")


def test_stopped_run_stays_stopped_until_its_target_moves():
    checkpointer = MemoryCheckpointer()
    first = control(SavedCounter(), Actions([lambda logs: first.stop("enough")]), checkpointer=checkpointer)
    logs = first.train_and_evaluate(50)
    trainer = SavedCounter()
    again = control(trainer, checkpointer=checkpointer)
    again.restore_checkpoint()
    assert again.train_and_evaluate(50) == logs
    assert trainer.events == []
    further = control(trainer, checkpointer=checkpointer)
    further.restore_checkpoint()
    assert further.train_and_evaluate(60)["validation_loss"] == 60


@pytest.mark.parametrize(
    ("meta", "progress"),
    [
        ({"window": {"phase": "acted", "stopped": "enough", "target": 9}}, LoopProgress(Phase.ACTED, "enough", 9)),
        ({"unclosed": True, "early": True, "stopped": {"reason": "", "target": 9}}, LoopProgress(Phase.TRAINED, "", 9)),
        (
            {"unclosed": False, "early": True, "stopped": {"reason": "so", "target": 9}},
            LoopProgress(Phase.OPEN, "so", 9),
        ),
        (
            {"unclosed": False, "early": False, "stopped": {"reason": "", "target": 9}},
            LoopProgress(Phase.FINISHED, "", 9),
        ),
        ({}, LoopProgress()),
    ],
)
def test_checkpoints_of_older_versions_hold_the_phase_of_the_window(meta, progress):
    assert LoopProgress.from_meta(meta) == progress


class Tally:
    def __init__(self):
        self.seen = []

    def __call__(self, logs):
        self.seen.append(logs["training_loss"])


def test_checkpoints_of_older_versions_have_other_keys():
    checkpointer, tallies = MemoryCheckpointer(), [Tally(), Tally()]
    control(SavedCounter(), Actions([tallies[0]]), checkpointer=checkpointer).train(5)
    meta = checkpointer.saved[5][1]
    meta["extra"] = meta.pop("parts")
    meta["recovery"] = {"trials": 1, "careful_until": 9, "skipped": [], "infinite": []}
    controller = control(SavedCounter(), Actions([tallies[1]]), checkpointer=checkpointer)
    controller.restore_checkpoint()
    assert (controller.recovery.trials, controller._skipper.until) == (1, 9)
    controller.train(10)
    assert tallies[1].seen == [1 / 5, 1 / 10]


def test_summary_interval():
    tracker = MemoryTracker()
    control(SavedCounter(), tracker=tracker, summary_interval=10).train(25)
    assert [point.step for point in tracker.points] == [10, 20]
    assert set(tracker.points[0].logs) == {"training_loss", "steps_per_second"}


def test_loops_as_a_function_of_the_step():
    trainer = SavedCounter()
    control(trainer, steps_per_loop=lambda step: 1 if step < 2 else 4).train(10)
    assert trainer.events == ["train 1", "train 1", "train 4", "train 4"]


def test_warning_for_a_trainer_that_counts_other_steps(caplog):
    with caplog.at_level(logging.WARNING):
        control(SavedCounter(speed=2)).train(20)
    moved = ["trainer.train(5) moved the step from 0 to 10", "trainer.train(5) moved the step from 10 to 20"]
    assert caplog.messages == moved


def test_logs_may_be_none():
    trainer = SavedCounter()
    trainer.train = lambda n, **calls: setattr(trainer, "global_step", trainer.global_step + n)
    trainer.evaluate = lambda n, **calls: None
    assert set(control(trainer).train_and_evaluate(5)) == {"eval_seconds"}


@pytest.mark.parametrize("steps", [0, -2])
def test_evaluation_steps(steps):
    with raises_problem(key="trainer.validation_steps", received=steps):
        control(SavedCounter()).evaluate(steps)


def test_missing_part_is_named():
    with raises_problem(key="Controller.train", reason="needs a trainer", remedy=r"Controller\(trainer="):
        Controller(evaluator=SavedCounter()).train(5)
    with raises_problem(key="Controller.evaluate", reason="needs an evaluator", remedy=r"Controller\(evaluator="):
        Controller(trainer=SavedCounter()).evaluate()


def test_a_controller_that_neither_trains_nor_evaluates_is_refused():
    with pytest.raises(UsageError) as error:
        Controller()
    assert error.value.key == "Controller()"


@pytest.mark.parametrize(
    ("part", "method", "arguments"),
    [
        ("evaluator", "train", [5]),
        ("evaluator", "save_checkpoint", []),
        ("trainer", "train_and_evaluate", [5]),
        ("trainer", "evaluate", []),
        ("trainer", "try_evaluation", [1]),
        ("trainer", "evaluate_continuously", [-1, 0.1]),
    ],
)
def test_a_missing_part_is_noticed_before_anything_is_done(part, method, arguments):
    given = SavedCounter()
    controller = Controller(**{part: given}, checkpointer=MemoryCheckpointer())
    with pytest.raises(UsageError) as error:
        getattr(controller, method)(*arguments)
    assert (error.value.key, given.events) == (f"Controller.{method}", [])


# -- evaluating what another process trains ----------------------------------------------------------------------------


def watch(checkpointer, evaluator=None, **kwargs):
    evaluator = evaluator or SavedCounter()
    controller = Controller(evaluator=evaluator, checkpointer=checkpointer)
    done = kwargs.pop("until", math.inf)
    logs = controller.evaluate_continuously(timeout_fn=lambda: controller.step >= done, poll=0.01, **kwargs)
    return evaluator.events, logs


def checkpointer_with(*steps):
    checkpointer = MemoryCheckpointer()
    for step in steps:
        checkpointer.save(step, {}, {"step": step})
    return checkpointer


def test_continuous_evaluation_takes_the_newest_and_ends_at_train_steps():
    events, logs = watch(checkpointer_with(5, 10, 15), until=15)
    assert events == ["evaluate 15"]
    assert logs["validation_loss"] == 15


def test_continuous_evaluation_sees_each_new_checkpoint():
    checkpointer, evaluator = checkpointer_with(5), SavedCounter()

    def train():
        """Saves the next step once the one before is evaluated."""
        for evaluated, step in enumerate((10, 15), start=1):
            while len(evaluator.events) < evaluated:
                time.sleep(0.01)
            checkpointer.save(step, {}, {"step": step})

    thread = threading.Thread(target=train)
    thread.start()
    events, logs = watch(checkpointer, evaluator, until=15, timeout=300)
    thread.join()
    assert events == ["evaluate 5", "evaluate 10", "evaluate 15"]
    assert logs["validation_loss"] == 15


def test_continuous_evaluation_has_written_an_evaluation_before_it_looks_for_the_next_checkpoint():
    evaluator, tracker = SavedCounter(), Flushed()
    controller = Controller(evaluator=evaluator, checkpointer=checkpointer_with(5), tracker=tracker)
    controller.evaluate_continuously(timeout_fn=lambda: tracker.safe == len(tracker.points) == 1, timeout=0.1)
    assert tracker.safe == 1


def test_continuous_evaluation_looks_for_checkpoints_as_often_as_it_is_told():
    class Looked(MemoryCheckpointer):
        looks = 0

        def latest(self):
            self.looks += 1

    checkpointer = Looked()
    with raises_problem(TrainingError, reason="no checkpoint appeared"):
        Controller(evaluator=SavedCounter(), checkpointer=checkpointer).evaluate_continuously(timeout=0.2, poll=0.1)
    assert 1 <= checkpointer.looks <= 3


def test_continuous_evaluation_goes_on_until_no_checkpoint_appears():
    class Evaluated(SavedCounter):
        def evaluate(self, num_steps, **calls):
            checkpointer.save(10, {}, {"step": 10})
            return super().evaluate(num_steps)

    checkpointer, evaluator = checkpointer_with(5), Evaluated()
    Controller(evaluator=evaluator, checkpointer=checkpointer).evaluate_continuously(timeout=0.1, poll=0.01)
    assert evaluator.events == ["evaluate 5", "evaluate 10"]


def test_continuous_evaluation_waits_where_all_checkpoints_are_removed():
    class Removed(SavedCounter):
        def evaluate(self, num_steps, **calls):
            checkpointer.saved.clear()
            return super().evaluate(num_steps)

    checkpointer, evaluator = checkpointer_with(5), Removed()
    Controller(evaluator=evaluator, checkpointer=checkpointer).evaluate_continuously(timeout=0.1, poll=0.01)
    assert evaluator.events == ["evaluate 5"]


class Removing(MemoryCheckpointer):
    """The trainer removes step 5 between two calls of another process, and has saved step 10."""

    def restore(self, step=None):
        if step == 5:
            self.saved = {10: ({}, {"step": 10})}
            raise FileNotFoundError("step 5")
        return super().restore(step)


def test_continuous_evaluation_goes_on_with_a_newer_checkpoint_if_one_is_removed():
    checkpointer = Removing()
    checkpointer.save(5, {}, {"step": 5})
    events, _ = watch(checkpointer, until=10, timeout=300)
    assert events == ["evaluate 10"]


class Unreadable(MemoryCheckpointer):
    def restore(self, step=None):
        raise UsageError("another model", key="model")


def test_continuous_evaluation_raises_what_is_wrong_with_a_checkpoint_that_is_there():
    checkpointer = Unreadable()
    checkpointer.save(5, {}, {"step": 5})
    with pytest.raises(UsageError) as error:
        watch(checkpointer, timeout=300)
    assert error.value.key == "model"


def test_continuous_evaluation_gives_up_on_a_dead_trainer(caplog):
    begin = time.monotonic()
    events, logs = watch(checkpointer_with(5), until=100, timeout=0.3)
    assert time.monotonic() - begin < 300
    assert events == ["evaluate 5"]
    assert logs["validation_loss"] == 5
    assert "no new checkpoint" in caplog.text


def test_continuous_evaluation_without_any_checkpoint():
    with raises_problem(TrainingError, reason="no checkpoint appeared"):
        watch(MemoryCheckpointer(), timeout=0.1)
