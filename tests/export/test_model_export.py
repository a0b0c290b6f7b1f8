import contextlib

import keras
import numpy as np
import pytest

from everstep.errors import UsageError
from everstep.export.model_export import evaluated_weights, sample_inputs
from everstep.task.optim.ema import ExponentialMovingAverage


def test_random_inputs_have_the_structure_that_the_model_declares():
    named = {"a": keras.Input((None, 2), name="a"), "b": keras.Input((3,), dtype="int32", name="b")}
    outputs = keras.layers.Dense(1)(named["a"][:, 0]) + keras.ops.cast(named["b"][:, :1], "float32")
    random = sample_inputs(keras.Model(named, outputs))
    assert {name: (array.shape, array.dtype.name) for name, array in random.items()} == {
        "a": ((2, 32, 2), "float32"),
        "b": ((2, 3), "int32"),
    }
    assert sample_inputs(keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])).shape == (2, 3)


def test_a_model_that_declares_no_inputs_needs_a_sample():
    model = keras.Sequential([keras.layers.Dense(2)])
    with pytest.raises(UsageError) as error:
        sample_inputs(model)
    assert error.value.key == "sample"
    assert sample_inputs(model, np.zeros((20, 3))).shape == (8, 3)


def test_the_model_has_the_averages_only_inside_the_block():
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(2, dtype="bfloat16")])
    optimizer = ExponentialMovingAverage(keras.optimizers.SGD(0.1))
    optimizer.build(model.trainable_variables)
    for variable, average in optimizer.pairs():
        variable.assign(np.random.default_rng(0).normal(size=variable.shape))
        average.assign(np.ones(average.shape))
    trained = [keras.ops.convert_to_numpy(weight).copy() for weight in model.weights]
    with contextlib.suppress(KeyboardInterrupt), evaluated_weights(keras.optimizers.LossScaleOptimizer(optimizer)):
        assert all((keras.ops.convert_to_numpy(weight) == 1).all() for weight in model.weights)
        raise KeyboardInterrupt
    after = [keras.ops.convert_to_numpy(weight) for weight in model.weights]
    assert all(np.array_equal(a, b) for a, b in zip(trained, after, strict=True))
    with evaluated_weights(None):
        pass
