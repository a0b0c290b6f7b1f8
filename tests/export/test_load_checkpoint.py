"""Weights of a checkpoint: which of them, and all or none."""

import keras
import numpy as np
import pytest

from everstep.checkpoint.orbax import OrbaxCheckpointer
from everstep.engine import state as states
from everstep.export import ExportModule, export
from everstep.export.model_export import load_checkpoint
from everstep.task.optim.ema import ExponentialMovingAverage, find_average, with_averages
from everstep.testing.problems import raises_problem

pytestmark = [
    pytest.mark.backend,
    pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning"),
]


def net(weight: float, classes: int = 2) -> keras.Model:
    dense = [keras.layers.Dense(3, name="features"), keras.layers.Dense(classes, name="head")]
    model = keras.Sequential([keras.Input((2,)), *dense])
    model.set_weights([np.full_like(array, weight) for array in model.get_weights()])
    return model


def save_checkpoint(path, model: keras.Model, optimizer: keras.Optimizer) -> dict[str, np.ndarray]:
    held = states.collect({"model": model, "optimizer": optimizer})
    state = {key: np.asarray(keras.ops.convert_to_numpy(variable)) for key, variable in held.items()}
    checkpointer = OrbaxCheckpointer(path / "checkpoints")
    checkpointer.save(1, state, {"step": 1})
    checkpointer.close()
    return state


def sgd(**settings) -> keras.Optimizer:
    return keras.optimizers.SGD(momentum=0.9, **settings)


@pytest.mark.parametrize("wrapped", [False, True])
def test_of_a_run_that_averages_the_averages_are_taken(tmp_path, caplog, wrapped):
    caplog.set_level("INFO")
    model, optimizer = net(1.0), ExponentialMovingAverage(sgd())
    optimizer = keras.optimizers.LossScaleOptimizer(optimizer) if wrapped else optimizer
    optimizer.build(model.trainable_variables)
    for _, average in find_average(optimizer).pairs():
        average.assign(np.full(average.shape, 3.0))
    state = save_checkpoint(tmp_path, model, optimizer)
    fresh = net(0.0)
    load_checkpoint(fresh, tmp_path)
    assert all((weight == 3.0).all() for weight in fresh.get_weights())
    averaged = with_averages(state)
    assert all((averaged[key] == 3.0).all() for key in averaged if key.startswith("model/"))
    assert "checkpoint_path: 4 of the model's 4 weights come from the averages in the run's checkpoint" in caplog.text


def test_averages_that_keras_keeps_are_not_what_was_evaluated(tmp_path):
    model, optimizer = net(1.0), sgd(use_ema=True)
    optimizer.build(model.trainable_variables)
    save_checkpoint(tmp_path, model, optimizer)
    fresh = net(0.0)
    load_checkpoint(fresh, tmp_path)
    assert all((weight == 1.0).all() for weight in fresh.get_weights())


@pytest.mark.skipif(keras.backend.backend() == "torch", reason="PyTorch cannot write a SavedModel")
@pytest.mark.parametrize("form", ["run", "a.keras"])
def test_a_checkpoint_of_which_some_does_not_fit_changes_nothing(tmp_path, form):
    model = net(1.0, classes=5)
    optimizer = sgd()
    optimizer.build(model.trainable_variables)
    save_checkpoint(tmp_path / "run", model, optimizer)
    model.save(tmp_path / "a.keras")
    other = net(2.0)
    with raises_problem(key="checkpoint_path", reason="^lacks weights of the model .* head/kernel"):
        export(ExportModule(None, other), ["serve"], tmp_path / "out", tmp_path / form)
    assert all((weight == 2.0).all() for weight in other.get_weights())
    assert not (tmp_path / "out").exists()
