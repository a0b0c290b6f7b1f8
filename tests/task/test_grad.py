"""`value_and_grad` and `cond` outside an engine, as in a notebook; the engine contract tests them inside one."""

import keras
import numpy as np
import pytest
from keras import layers, ops

import everstep
from everstep.errors import UsageError
from everstep.testing import models

pytestmark = pytest.mark.backend


def number(variable):
    return float(ops.convert_to_numpy(variable))


@pytest.fixture
def weight():
    return keras.Variable(3.0, name="weight")


def test_value_and_gradient(weight):
    loss, (gradient,) = everstep.value_and_grad(lambda: weight**2, [weight])
    assert (number(loss), number(gradient), number(weight)) == (9, 6, 3)


def test_further_values_are_returned_unchanged(weight):
    (loss, extra), _ = everstep.value_and_grad(lambda: (weight * 2, {"a": [weight + 1, None]}), [weight])
    assert number(loss) == 6
    assert number(extra["a"][0]) == 4
    assert extra["a"][1] is None


def test_unused_variables_get_zeros(weight):
    unused = keras.Variable(np.ones((2, 3)))
    _, gradients = everstep.value_and_grad(lambda: weight**2, [unused, weight])
    np.testing.assert_array_equal(ops.convert_to_numpy(gradients[0]), np.zeros((2, 3)))


def test_assignments_are_kept(weight):
    count = keras.Variable(0.0)

    def loss_fn():
        count.assign(count + 1.0)
        count.assign(count + 1.0)
        return weight * count

    loss, (gradient,) = everstep.value_and_grad(loss_fn, [weight])
    assert (number(loss), number(gradient), number(count)) == (6, 2, 2)


@pytest.mark.daily("torch", "tensorflow")  # JAX compiles every operation of the cell
def test_a_model_trains_in_a_notebook_cell():
    keras.utils.set_random_seed(0)
    model, optimizer = models.cnn(), keras.optimizers.Adam(1e-2)
    x, y = models.samples(model, 32)
    losses = []
    moving_mean = model.layers[1].moving_mean
    for _ in range(8):

        def loss_fn():
            return ops.mean(ops.square(ops.subtract(model(x, training=True), y))) + sum(model.losses)

        loss, grads = everstep.value_and_grad(loss_fn, model.trainable_variables, optimizer=optimizer)
        optimizer.apply(grads, model.trainable_variables)
        losses.append(number(loss))
    assert losses[-1] < losses[0]
    assert np.any(ops.convert_to_numpy(moving_mean))
    drawn = 0 if keras.backend.backend() == "torch" else 8  # Keras's Dropout uses it on PyTorch only in an engine
    assert ops.convert_to_numpy(model.layers[3].seed_generator.state)[1] == drawn


def test_losses_of_the_model_are_available():
    dense = layers.Dense(1, use_bias=False, kernel_initializer="ones", kernel_regularizer=keras.regularizers.L2(0.5))
    model = keras.Sequential([keras.Input((2,)), dense, layers.ActivityRegularization(l1=1.0)])
    loss, _ = everstep.value_and_grad(
        lambda: ops.sum(model(np.ones((1, 2), "float32")) * 0.0) + sum(model.losses), model.trainable_variables
    )
    assert number(loss) == 0.5 * 2 + 2.0


def test_loss_scaling_scales_only_the_gradients(weight):
    optimizer = keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(0.1), initial_scale=8.0)
    optimizer.build([weight])
    loss, (gradient,) = everstep.value_and_grad(lambda: weight**2, [weight], optimizer=optimizer)
    assert (number(loss), number(gradient)) == (9, 48)


def test_gradients_of_gradients(weight):
    def slope():
        _, (gradient,) = everstep.value_and_grad(lambda: weight**3, [weight])
        return gradient**2

    loss, (gradient,) = everstep.value_and_grad(slope, [weight])
    assert (number(loss), number(gradient)) == (27.0**2, 2 * 27 * 18)


@pytest.mark.parametrize("which", [True, False])
def test_cond_runs_one_branch(which, weight):
    other = keras.Variable(1.0)

    def true_fn():
        weight.assign(weight * 2.0)
        return weight + 0.0

    def false_fn():
        other.assign(other + 4.0)
        return other + 0.0

    value = everstep.cond(ops.convert_to_tensor(which), true_fn, false_fn)
    assert number(value) == (6 if which else 5)
    assert (number(weight), number(other)) == ((6, 1) if which else (3, 5))


@pytest.mark.parametrize("which", [True, False])
def test_cond_without_values(which, weight):
    result = everstep.cond(ops.convert_to_tensor(which), lambda: _assign(weight, 7.0), lambda: None)
    assert result is None
    assert number(weight) == (7 if which else 3)


def test_cond_in_cond(weight):
    def inner():
        everstep.cond(weight > 2.0, lambda: _assign(weight, weight + 10.0), lambda: _assign(weight, 0.0))
        everstep.cond(weight > 20.0, lambda: _assign(weight, 0.0), lambda: _assign(weight, weight + 1.0))

    everstep.cond(weight > 0.0, inner, lambda: None)
    assert number(weight) == 14


@pytest.mark.parametrize("start", [1.0, -1.0])
def test_cond_in_a_loss(start):
    weight, seen = keras.Variable(start), keras.Variable(0.0)

    def positive():
        seen.assign(1.0)
        return weight**2

    def negative():
        seen.assign(-1.0)
        return weight * 5.0

    loss, (gradient,) = everstep.value_and_grad(lambda: everstep.cond(weight > 0, positive, negative), [weight])
    assert (number(loss), number(gradient)) == ((1, 2) if start > 0 else (-5, 5))
    assert number(seen) == start


def test_a_loss_in_cond(weight):
    def learn():
        loss, (gradient,) = everstep.value_and_grad(lambda: weight**2, [weight])
        weight.assign(weight - 0.5 * gradient)
        return loss

    assert number(everstep.cond(weight > 1, learn, lambda: weight * 0.0)) == 9
    assert number(weight) == 0
    assert number(everstep.cond(weight > 1, learn, lambda: weight * 0.0)) == 0


def _assign(variable, value):
    variable.assign(value)


def test_a_loss_and_variables_in_the_wrong_order_are_named(weight):
    with pytest.raises(UsageError) as refused:
        everstep.value_and_grad([weight], lambda: weight**2)
    assert refused.value.key == "loss_fn"
    assert refused.value.reason == "expected a function, not list (Variable)"
