"""Loss scaling: saving and loading, the configured scale of a compiled model, and the count of updates."""

import logging

import keras
import numpy as np
import pytest

from everstep.task.optim.ema import ExponentialMovingAverage
from everstep.task.optim.loss_scale import (
    UPDATES,
    FixedLossScaleOptimizer,
    find_scaling,
    rescale,
    scaling_loss,
    updates,
)

pytestmark = pytest.mark.backend


def compiled_model(optimizer, **settings):
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
    model.compile(optimizer, "mse", **settings)
    return model


def test_saving_and_loading_a_fixed_scale(tmp_path):
    optimizer = scaling_loss(keras.optimizers.Adam(0.1, beta_1=0.5), 64)
    again = keras.optimizers.deserialize(keras.optimizers.serialize(optimizer))
    assert type(again) is FixedLossScaleOptimizer
    assert (again.initial_scale, again.inner_optimizer.beta_1) == (64.0, 0.5)
    assert again.get_config() == optimizer.get_config()
    model = compiled_model(optimizer)
    model.train_on_batch(np.ones((2, 4)), np.ones((2, 1)))
    model.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras").optimizer
    assert type(loaded) is FixedLossScaleOptimizer
    assert (loaded.initial_scale, int(loaded.iterations)) == (64.0, 1)


def test_a_compiled_model_gets_the_configured_scale():
    inner = keras.optimizers.SGD(0.1)
    model = compiled_model(keras.optimizers.LossScaleOptimizer(inner))
    before = model.optimizer
    for scale in (None, "dynamic"):
        rescale(model, scale)
        assert model.optimizer is before
    rescale(model, 8.0)
    fixed = model.optimizer
    assert (type(fixed), fixed.initial_scale, fixed.inner_optimizer) == (FixedLossScaleOptimizer, 8.0, inner)
    rescale(model, 8)
    assert model.optimizer is fixed
    rescale(model, "dynamic")
    assert type(model.optimizer) is keras.optimizers.LossScaleOptimizer


def test_a_scale_without_effect_logs_a_warning(caplog):
    model = compiled_model(keras.optimizers.SGD(0.1))
    with caplog.at_level(logging.WARNING):
        rescale(model, 8.0)
    assert "runtime.loss_scale=8.0 has no effect" in caplog.text
    assert isinstance(model.optimizer, keras.optimizers.SGD)


def test_updates_are_counted_if_steps_may_be_skipped():
    inner = keras.optimizers.SGD(0.1)
    scaling = scaling_loss(inner, 4.0)
    assert find_scaling(ExponentialMovingAverage(scaling)) is scaling
    assert find_scaling(inner) is None
    assert updates(inner) == updates(None) == {}
    assert list(updates(ExponentialMovingAverage(scaling))) == [UPDATES]
