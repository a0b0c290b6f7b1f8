"""Norms of gradients and weights: right numbers for every kind of step, without changing a bit of the weights."""

import keras
import numpy as np
import pytest
from keras import ops

import everstep
from everstep.checkpoint.digests import weights_digest
from everstep.engine.backend import create_engine
from everstep.task.optim.loss_scale import scaling_loss
from everstep.testing import models
from everstep.testing.tasks import Regression, Scripted, running, seeded

pytestmark = pytest.mark.backend


def measuring(task, model, optimizer):
    engine = create_engine(task, model, optimizer)
    engine.measures_norms = True
    return engine


def logged(rig):
    logs = rig.engine.read("train")
    return logs["norm/gradient"], logs["norm/weights"]


def expected_gradient(data, weights, batch_size=4):
    """Returns the gradient norm of each batch, for a linear model whose weights do not change."""
    x, y = data
    errors = x @ weights - y
    whole = [
        2 * x[i : i + batch_size].T @ errors[i : i + batch_size] / batch_size for i in range(0, len(x), batch_size)
    ]
    return [float(np.linalg.norm(gradient)) for gradient in whole]


def linear_data(samples):
    rng = np.random.default_rng(3)
    return rng.normal(size=(samples, 4)).astype("float32"), rng.normal(size=(samples, 1)).astype("float32")


def frozen_sgd():
    return keras.optimizers.SGD(0.0)


def test_mean_over_a_window_before_clipping():
    data, model = linear_data(28), models.linear(0.5)
    data[1][24:] = np.inf
    with running(measuring, Regression(), model, keras.optimizers.SGD(0.0, global_clipnorm=1e-3), data) as rig:
        norms = expected_gradient((data[0][:24], data[1][:24]), np.full((4, 1), 0.5, "float32"))
        rig.run(2, 2)
        assert logged(rig) == pytest.approx((np.mean(norms[:4]), 1.0), rel=1e-5)
        rig.engine.reset("train")
        rig.run(2)
        assert logged(rig)[0] == pytest.approx(np.mean(norms[4:]), rel=1e-5)
        rig.run(1)
        assert not np.isfinite(logged(rig)[0])  # reported, not an error


@pytest.mark.parametrize(
    "kind", ["mlp", *(pytest.param(kind, marks=pytest.mark.full) for kind in ("cnn", "transformer"))]
)
def test_weights_keep_their_bits(kind):
    digests = []
    for make in (create_engine, measuring):
        with running(make, Regression(), seeded(models.MODELS[kind]), long_calls=True) as rig:
            rig.run(1, 4, 8)
            digests.append(weights_digest(rig.engine.state()))
    assert digests[0] == digests[1]


def test_loss_scaling_does_not_scale_the_norm_and_skipped_steps_do_not_count():
    x, y = linear_data(8)
    y[4:] = np.inf
    norms = expected_gradient((x[:4], y[:4]), np.full((4, 1), 0.5, "float32"))
    with running(measuring, Regression(), models.linear(0.5), scaling_loss(frozen_sgd(), 64.0), (x, y)) as rig:
        rig.run(2)
        assert logged(rig)[0] == pytest.approx(norms[0], rel=1e-5)


def test_a_custom_step_with_two_optimizers_in_branches():
    """Gradients that only one branch of `cond` applies are measured, without leaking tensors out of it."""

    def step(task, inputs, model, optimizer, metrics):
        x, y = inputs
        weights = model.trainable_variables

        def learn(by):
            def loss_fn():
                return ops.mean(ops.square(model(x, training=True) - y))

            loss, grads = everstep.value_and_grad(loss_fn, weights, optimizer=by)
            by.apply(grads, weights)
            return loss

        task.count.assign(task.count + 1)
        even = ops.equal(task.count % 2, 0)
        return {"loss": everstep.cond(even, lambda: learn(task.other), lambda: learn(optimizer))}

    data, model = linear_data(16), models.linear(0.5)
    other = frozen_sgd()
    other.build(model.trainable_variables)
    count = keras.Variable(0, dtype="int32", trainable=False, name="count")
    task = Scripted(step, other=other, count=count)
    with running(measuring, task, model, frozen_sgd(), data) as rig:
        rig.run(4)
        norms = expected_gradient(data, np.full((4, 1), 0.5, "float32"))
        assert logged(rig)[0] == pytest.approx(np.mean(norms), rel=1e-5)


def test_a_step_that_applies_no_gradients(caplog):
    task = Scripted(lambda task, inputs, model, optimizer, metrics: {"loss": ops.mean(model(inputs[0]))})
    with running(measuring, task, models.linear(0.5), frozen_sgd(), linear_data(8)) as rig:
        rig.run(1)
        logs = rig.engine.read("train")
    assert "norm/gradient" not in logs
    assert logs["norm/weights"] == 1.0
    assert sum("norm/gradient is not logged" in message for message in caplog.messages) == 1


def test_norms_are_restored_and_measuring_may_be_switched_on_and_off():
    optimizer, model = keras.optimizers.Adam(1e-2), seeded(models.plain_mlp)
    with running(measuring, Regression(), model, optimizer) as rig:
        rig.run(2)
        state, position = rig.engine.state(), rig.feed.state()
        rig.run(2)
        whole = rig.engine.read("train")
    with running(create_engine, Regression(), model, optimizer) as rig:  # the same optimizer, no longer measured
        rig.engine.load(state)
        rig.run(1)
        unmeasured = rig.engine.state()
        assert not any("/norms/" in key for key in unmeasured)
        assert "norm/gradient" not in rig.engine.read("train")
    with running(measuring, Regression(), seeded(models.plain_mlp, 1)) as rig:
        rig.engine.load(unmeasured)
        rig.run(1)
        assert logged(rig)[0] > 0
        rig.engine.load(state)
        rig.feed.restore(position)
        rig.run(2)
        assert rig.engine.read("train") == whole
