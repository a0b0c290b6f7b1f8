"""Training in stages: what is carried over, what is not, and the same bits after a kill in any stage."""

import json

import keras
import numpy as np
import pytest

from everstep.checkpoint.orbax import OrbaxCheckpointer
from everstep.experiment import create_trainer
from everstep.loop.progressive import Carrying, ProgressivePolicy, carry
from everstep.task.optim.ema import ExponentialMovingAverage
from everstep.testing import models

from .samples import TinyTask, run, tiny_params

pytestmark = pytest.mark.backend


class Growing(ProgressivePolicy, TinyTask):
    """Three stages of 5, 4 and 100 steps; the model's last layer is a new one in the second."""

    def __init__(self):
        super().__init__()
        self.built = []

    def num_stages(self):
        return 3

    def num_steps(self, stage):
        return (5, 4, 100)[stage]

    def get_model(self, stage, old_model=None):
        self.built.append((stage, old_model is not None))
        width = 6 if stage == 0 else 9
        layers = [keras.layers.Dense(5, "tanh"), keras.layers.Dropout(0.1 * stage), keras.layers.Dense(width, "tanh")]
        return keras.Sequential([keras.Input((4,)), *layers, keras.layers.Dense(1)])


class Twice(ProgressivePolicy, TinyTask):
    """The same model in two stages, the second of which begins after `first` steps."""

    first = 4

    def num_stages(self):
        return 2

    def num_steps(self, stage):
        return (self.first, 100)[stage]

    def get_model(self, stage, old_model=None):
        return models.mlp()


def restored_checkpoint(directory, step=None):
    return OrbaxCheckpointer(directory / "checkpoints").restore(step)


def test_stages_are_functions_of_the_step():
    task = Growing()
    assert [task.stage_at(step) for step in (0, 4, 5, 8, 9, 500)] == [0, 0, 1, 1, 2, 2]


def test_variables_that_still_fit_go_on(tmp_path, caplog):
    """Loops of 4 steps: the second stage begins at step 8, when the loop with its first step is over."""
    task = Growing()
    run("train_and_eval", tmp_path, task)
    assert task.built == [(0, False), (1, True)]
    assert "step 8: stage 2 of 3" in caplog.text
    state, meta = restored_checkpoint(tmp_path)
    assert (meta["stage"], meta["step"]) == (1, 12)
    assert state["optimizer/iteration"] == 12, "the optimizer's steps continue"
    before, _ = restored_checkpoint(tmp_path, 8)
    assert before["model/dense_1/kernel"].shape == (5, 6)
    assert state["model/dense_1/kernel"].shape == (5, 9)
    assert not np.array_equal(before["model/dense/kernel"], state["model/dense/kernel"])


def digest(directory):
    return json.loads((directory / "run.json").read_text())["digest"]


def interrupted(directory, params, stop):
    """Runs until the loop that ends at the step is over, and no further."""
    task = Growing()
    trainer = create_trainer(params, task, train=True, evaluate=False)

    def cut(logs):
        if trainer.global_step >= stop:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run("train", directory, task, params, trainer=trainer, train_actions=[cut])


@pytest.mark.parametrize("stops", [{16: 1}, pytest.param({4: None, 8: 0, 20: 2}, marks=pytest.mark.full)])
def test_interrupted_in_any_stage_ends_in_the_same_bits(tmp_path, stops):
    """The newest checkpoint is of the loop before; in two cases of a later stage, which is built before it is read."""
    params = tiny_params(train_steps=24, checkpoint_interval=4)
    run("train", tmp_path / "whole", Growing(), params)
    for stop, stage in stops.items():
        directory = tmp_path / str(stop)
        interrupted(directory, params, stop)
        checkpoints = OrbaxCheckpointer(directory / "checkpoints")
        assert checkpoints.newest_meta().get("stage") == stage
        resumed = Growing()
        run("train", directory, resumed, params)
        assert digest(directory) == digest(tmp_path / "whole"), f"stopped at step {stop}"
    assert resumed.built[:2] == [(0, False), (stage, False)], "the stage of the checkpoint is built, and none before it"


# -- what is carried over ----------------------------------------------------------------------------------------------


class Stacking(Twice):
    """The second stage has one layer more, which begins as a copy of the first one."""

    def carries(self, stage):
        return False

    def get_model(self, stage, old_model=None):
        layers = [keras.layers.Dense(4) for _ in range(2 + stage)]
        model = keras.Sequential([keras.Input((4,)), *layers, keras.layers.Dense(1)])
        if old_model is not None:
            first, *others = old_model.layers
            for layer, old in zip(model.layers, (first, first, *others), strict=True):
                layer.set_weights(old.get_weights())
            self.returned = [weight.copy() for weight in model.get_weights()]
        return model


def test_without_carrying_the_model_is_trained_as_returned(tmp_path):
    params = tiny_params(train_steps=8, checkpoint_interval=4)
    params.override({"trainer": {"optimizer_config": {"learning_rate": {"constant": {"learning_rate": 0.0}}}}})
    task = Stacking()
    model, _ = run("train", tmp_path, task, params)
    assert all(np.array_equal(a, b) for a, b in zip(model.get_weights(), task.returned, strict=True))
    state, _ = restored_checkpoint(tmp_path)
    assert state["optimizer/iteration"] == 8
    assert np.any(restored_checkpoint(tmp_path, 4)[0]["optimizer/model/dense/kernel/momentum"])


class OwnOptimizers(Twice):
    """Adam first, then the optimizer of `second`."""

    def get_optimizer(self, stage):
        return (keras.optimizers.Adam(0.01), self.second)[stage]


def test_a_stage_with_an_optimizer_of_its_own(tmp_path):
    task = OwnOptimizers()
    task.second = keras.optimizers.SGD(0.0, momentum=0.9)
    run("train", tmp_path, task, tiny_params(train_steps=8, checkpoint_interval=4))
    (before, _), (state, _) = restored_checkpoint(tmp_path, 4), restored_checkpoint(tmp_path)
    assert state["optimizer/learning_rate"] == 0
    assert state["optimizer/iteration"] == 8
    assert np.array_equal(state["model/dense/kernel"], before["model/dense/kernel"]), (
        "Adam's momentum is not carried over"
    )


def test_averages_that_begin_in_a_stage_begin_as_the_weights(tmp_path):
    task = OwnOptimizers()
    task.second = ExponentialMovingAverage(keras.optimizers.Adam(0.0), average_decay=0.5)
    run("train", tmp_path, task, tiny_params(train_steps=8, checkpoint_interval=4))
    (before, _), (state, _) = restored_checkpoint(tmp_path, 4), restored_checkpoint(tmp_path)
    (mean,) = [key for key in state if "model/dense/kernel" in key and key.endswith("average")]
    assert np.array_equal(state["model/dense/kernel"], before["model/dense/kernel"])
    assert np.allclose(state[mean], state["model/dense/kernel"], rtol=1e-6)
    assert state["optimizer/inner/iteration"] == 8, "steps continue inside the wrapper"


def test_carried_variables():
    def state(level, value):
        keys = ["iteration", "learning_rate", "model/w/momentum"]
        return {"model/w": np.array([value]), **{f"optimizer/{level}{key}": np.array([value]) for key in keys}}

    def carried(**choice):
        fresh = {**state("inner/", 2.0), "window.train/n": np.array([5.0])}
        begun, count, of = carry(state("", 1.0), fresh, Carrying(**choice))
        assert (count, of) == (sum(v == 1 for v in begun.values()), 4)
        return {key.rpartition("/")[2] for key, value in begun.items() if value == 1}

    assert carried() == {"w", "iteration", "learning_rate", "momentum"}
    assert carried(weights=False) == {"iteration", "learning_rate"}
    assert carried(slots=False) == {"w", "iteration", "learning_rate"}
    assert carried(rate=False) == {"w", "iteration", "momentum"}


# -- recovery, and data ------------------------------------------------------------------------------------------------


class Spoiled(Twice):
    """One sample of the second stage's data is not a number."""

    def get_train_dataset(self, stage):
        x, y = models.samples(models.plain_mlp(), 44)
        x = x.copy()
        x[3] = np.nan if stage else x[3]
        return x, y


def test_recovery_trains_the_stage_it_is_in(tmp_path):
    """The last good state is of the stage before: the steps taken with care are steps of the next one's engine."""
    run("train", tmp_path, Spoiled(), tiny_params(train_steps=12, checkpoint_interval=4, recovery_max_trials=9))
    state, meta = restored_checkpoint(tmp_path)
    assert (meta["step"], meta["stage"]) == (12, 1)
    assert len(meta["recovery"]["skipped"]) >= 1
    assert state["optimizer/iteration"] == 12, "every step was learned"


class Cached(Twice):
    """A cached dataset that repeats itself."""

    def get_train_dataset(self, stage):
        tf = pytest.importorskip("tensorflow")
        data = tf.data.Dataset.from_tensor_slices(models.samples(models.plain_mlp(), 44))
        return data.cache().shuffle(44, seed=1).repeat().batch(8, drop_remainder=True)


@pytest.mark.timeout(600)
def test_stages_with_data_that_has_no_end(tmp_path):
    run("train", tmp_path, Cached(), tiny_params(train_steps=8))
    assert restored_checkpoint(tmp_path)[1]["stream"] == {"epoch": 1, "batch": 4}
