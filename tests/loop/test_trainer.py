"""The inner loop, on the process's backend."""

import keras
import numpy as np
import pytest

from everstep.errors import Problem, TrainingError, UsageError
from everstep.experiment import create_trainer
from everstep.loop.trainer import Trainer
from everstep.testing.problems import raises_problem

from .samples import TinyTask, tiny_params, weights

pytestmark = pytest.mark.backend


class Weighted(TinyTask):
    """Reports what it saw, sample by sample, on the host."""

    def validation_step(self, inputs, model, metrics):
        return {**super().validation_step(inputs, model, metrics), "targets": inputs[1]}

    def aggregate_logs(self, state, step_outputs):
        return [*(state or []), *step_outputs["targets"][0].ravel()]

    def reduce_aggregated_logs(self, aggregated_logs, global_step=None):
        self.seen = aggregated_logs
        return {"targets_mean": np.mean(aggregated_logs)}


@pytest.fixture(scope="module")
def trainer():
    trainer = create_trainer(tiny_params(), TinyTask(), train=True, evaluate=True)
    yield trainer
    trainer.close()


def test_logs(trainer):
    before = trainer.global_step
    logs = trainer.train(3)
    assert set(logs) == {"training_loss", "mae", "learning_rate"}
    assert next(iter(logs)) == "training_loss"
    assert logs["learning_rate"] == pytest.approx(0.01)
    assert trainer.global_step == before + 3
    assert trainer.epoch == trainer.global_step // 5


def test_every_sample_is_evaluated_once(trainer):
    x, y = trainer.task.build_inputs(trainer.config.task.validation_data)
    assert len(x) == 13
    logs = trainer.evaluate()
    assert list(logs) == ["validation_loss", "mae"]
    assert trainer.evaluated_batches == 4
    trainer.engine.push()
    errors = keras.ops.convert_to_numpy(trainer.model(x, training=False)) - y
    assert logs["validation_loss"] == pytest.approx(np.mean(errors**2), rel=1e-5)
    assert logs["mae"] == pytest.approx(np.mean(np.abs(errors)), rel=1e-5)
    assert trainer.evaluate(-1) == logs


def test_some_batches_are_evaluated(trainer):
    some = trainer.evaluate(2)
    assert trainer.evaluated_batches == 2
    assert some != trainer.evaluate()


def test_evaluation_leaves_the_open_window_alone(trainer):
    trainer.train(2)
    before = trainer.engine.state()
    trainer.evaluate()
    after = trainer.engine.state()
    assert all(np.array_equal(before[key], after[key]) for key in before)


def test_an_open_window_continues(trainer):
    trainer.train(2)
    first = trainer.engine.state()["window.train/samples"]
    trainer.train(2, new_window=False)
    assert (first, trainer.engine.state()["window.train/samples"]) == (16, 32)


def test_state_and_restore(trainer):
    state, meta = trainer.state()
    assert meta == {"step": trainer.global_step, "stream": trainer.state()[1]["stream"]}
    ahead = trainer.train(7)
    trainer.engine.push()
    there = weights(trainer.model)
    trainer.restore(state, meta)
    assert trainer.global_step == meta["step"]
    assert trainer.train(7) == ahead
    trainer.engine.push()
    assert np.array_equal(weights(trainer.model), there)


def test_steps_can_be_watched_and_stopped(trainer):
    seen, begin = [], trainer.global_step
    trainer.step_by_step()
    trainer.train(10, after_call=lambda step: (seen.append(step - begin), len(seen) < 3)[1])
    assert seen == [1, 2, 3]
    assert trainer.global_step == begin + 3


def test_batches_of_an_evaluation_can_be_watched(trainer):
    seen = []
    watched = trainer.evaluate(
        before_call=lambda done: seen.append(("before", done)),
        after_call=lambda done: seen.append(("after", done)) is None,
        single_batches=True,
    )
    assert seen == [(when, i + (when == "after")) for i in range(4) for when in ("before", "after")]
    assert watched == pytest.approx(trainer.evaluate(), rel=1e-6)


def test_aggregated_logs():
    task = Weighted()
    trainer = create_trainer(tiny_params(), task, train=False, evaluate=True)
    logs = trainer.evaluate()
    trainer.close()
    assert np.array_equal(task.seen, task.build_inputs(trainer.config.task.validation_data)[1].ravel())
    assert logs["targets_mean"] == np.mean(task.seen)


def test_training_data_that_ends():
    params = tiny_params()
    params.override({"task": {"train_data": {"repeat": False}}})
    trainer = create_trainer(params, TinyTask(), train=True, evaluate=False)
    with raises_problem(TrainingError, reason="ended after step 5 of 12", remedy="repeat"):
        trainer.train(12)
    trainer.close()
    assert trainer.global_step == 5


def test_a_trainer_for_evaluation_only_refuses_to_train():
    trainer = create_trainer(tiny_params(), TinyTask(), train=False, evaluate=True)
    with raises_problem(reason="created to evaluate only"):
        trainer.train(1)
    trainer.validation_stream = None
    with raises_problem(reason="created to train only"):
        trainer.evaluate()


def test_data_handed_over_and_class_of_ones_own():
    class Mine(Trainer):
        pass

    task, params = TinyTask(), tiny_params()
    model = task.build_model()
    data = task.build_inputs(params.task.validation_data)
    mine = Mine(params, task, model, train=False, validation_dataset=lambda: iter([data]))
    assert mine.evaluate()["validation_loss"] > 0
    assert mine.evaluated_batches == 1
    mine.close()
    assert type(create_trainer(params, task, train=False, evaluate=True, trainer_cls=Mine)) is Mine


def test_empty_data():
    with raises_problem(key="task.validation_data", reason="no batch at all"):
        Trainer(tiny_params(), TinyTask(), TinyTask().build_model(), train=False, validation_dataset=lambda: iter([]))


@pytest.mark.parametrize(
    ("path", "key"),
    [("input_path", "task.validation_data.input_path"), ("task.task_routines[1].seed", "task.task_routines[1].seed")],
)
def test_errors_of_data_carry_the_whole_key(path, key):
    class Lost(TinyTask):
        def build_inputs(self, params, input_context=None):
            raise UsageError([Problem(path, "received 'x'")])

    with pytest.raises(UsageError) as error:
        Trainer(tiny_params(), Lost(), Lost().build_model(), train=False)
    assert str(error.value) == f"{key}: received 'x'"
