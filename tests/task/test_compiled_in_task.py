"""A compiled model in a task with its own losses and metrics: both are used, as in Model Garden."""

import keras
import numpy as np
import pytest
from keras import ops

import everstep
from everstep.engine.backend import create_engine
from everstep.testing import models
from everstep.testing.problems import raises_problem
from everstep.testing.tasks import running, seeded

pytestmark = pytest.mark.backend

WEIGHT, DECAY, OWN = 0.5, 0.01, 3.0


class Bare(everstep.Task):
    def build_inputs(self, params, input_context=None):
        return None


class Adding(Bare):
    """Adds three times the mean output to the loss, and records the `aux_losses` of each call."""

    def __init__(self):
        super().__init__()
        self.aux_losses = []

    def build_losses(self, labels, model_outputs, aux_losses=None, sample_weight=None):
        self.aux_losses.append(aux_losses)
        return OWN * ops.mean(model_outputs)


class Counting(Bare):
    def build_metrics(self, training=True):
        return [keras.metrics.MeanAbsoluteError(name="own")]

    def process_compiled_metrics(self, compiled_metrics, labels, model_outputs):
        compiled_metrics.update_state(labels, 0 * model_outputs)


def linear(loss="mse", **options):
    def build():
        decay = keras.regularizers.L2(DECAY)
        weights = keras.initializers.Constant(WEIGHT)
        layer = keras.layers.Dense(1, use_bias=False, kernel_initializer=weights, kernel_regularizer=decay)
        model = keras.Sequential([keras.Input((4,)), layer])
        model.compile(keras.optimizers.SGD(0.1), loss, **options)
        return model

    return seeded(build)


def outcome_of_step(task, model, data):
    """Returns the logs of a training step and of an evaluation before it, and the weights after it."""
    with running(create_engine, task, model, model.optimizer, data, len(data[0])) as rig:
        evaluated = rig.evaluate(data)
        rig.run(1)
        return rig.engine.read("train"), evaluated, rig.value("model/dense/kernel")


@pytest.fixture
def data():
    return models.samples(models.linear(), 8)


def expected(data):
    """Returns the expected outputs, the compiled loss with the regularizer, and its gradient."""
    x, y = data
    outputs = x @ np.full((4, 1), WEIGHT)
    compiled = np.mean((outputs - y) ** 2) + DECAY * 4 * WEIGHT**2
    return outputs, compiled, 2 * x.T @ (outputs - y) / len(x) + 2 * DECAY * WEIGHT


def test_training_adds_the_loss_of_the_task_and_evaluation_uses_only_that(data):
    outputs, compiled, gradient = expected(data)
    task = Adding()
    logs, evaluated, weights = outcome_of_step(task, linear(), data)
    own = OWN * outputs.mean()
    assert logs["loss"] == pytest.approx(compiled + own, rel=1e-5)
    assert evaluated["loss"] == pytest.approx(own, rel=1e-5)
    whole = gradient + OWN * data[0].mean(0)[:, None]
    np.testing.assert_allclose(weights, WEIGHT - 0.1 * whole, rtol=1e-5, atol=1e-7)
    assert any(aux is None for aux in task.aux_losses)
    assert any(aux is not None and len(aux) == 1 for aux in task.aux_losses)


def test_without_a_loss_of_the_task_the_compiled_loss_is_used(data):
    _, compiled, gradient = expected(data)
    logs, evaluated, weights = outcome_of_step(Bare(), linear(), data)
    assert (logs["loss"], evaluated["loss"]) == pytest.approx((compiled, compiled), rel=1e-5)
    np.testing.assert_allclose(weights, WEIGHT - 0.1 * gradient, rtol=1e-5, atol=1e-7)


def test_a_model_compiled_without_a_loss_uses_that_of_the_task(data):
    task = Adding()
    logs, evaluated, _ = outcome_of_step(task, linear(loss=None), data)
    own = OWN * expected(data)[0].mean()
    assert (logs["loss"], evaluated["loss"]) == pytest.approx((own, own), rel=1e-5)
    assert all(aux is not None for aux in task.aux_losses)  # the task adds the losses of the model itself


def test_metrics_of_task_and_model_are_updated_by_their_methods(data):
    outputs, y = expected(data)[0], data[1]
    logs, evaluated, _ = outcome_of_step(Counting(), linear(metrics=["mae"]), data)
    for found in (logs, evaluated):
        assert found["own"] == pytest.approx(np.abs(outputs - y).mean(), rel=1e-5)
        assert found["mae"] == pytest.approx(np.abs(y).mean(), rel=1e-5)


def test_evaluation_uses_the_inference_step_of_the_task(data):
    class Silent(Bare):
        def inference_step(self, inputs, model):
            return 0 * model(inputs, training=False)

    _, evaluated, _ = outcome_of_step(Silent(), linear(metrics=["mae"]), data)
    assert evaluated["mae"] == pytest.approx(np.abs(data[1]).mean(), rel=1e-5)


def test_sample_weights_that_a_method_does_not_accept_are_refused(data):
    weighted = (*data, np.ones(8, "float32"))
    with raises_problem(key="Counting.process_compiled_metrics", reason="takes no sample weights"):
        outcome_of_step(Counting(), linear(metrics=["mae"]), weighted)


class Ported(Bare):
    """Reads `model.compiled_metrics`, as Model Garden's steps do."""

    def build_metrics(self, training=True):
        return [keras.metrics.MeanAbsoluteError(name="own")]

    def train_step(self, inputs, model, optimizer, metrics):
        x, y = inputs
        outputs = model(x, training=True)
        if model.compiled_metrics:
            self.process_compiled_metrics(model.compiled_metrics, y, outputs)
            return {"loss": ops.mean(outputs), **{m.name: m.result() for m in model.metrics if m.name != "loss"}}
        self.process_metrics(metrics, y, outputs)
        return {"loss": ops.mean(outputs)}


def test_a_step_may_read_compiled_metrics(data):
    """They exist on every backend if the model was compiled with metrics; otherwise those of the task are used."""
    outputs = data[0] @ np.full((4, 1), WEIGHT)
    error = np.abs(outputs - data[1]).mean()
    compiled = outcome_of_step(Ported(), linear(metrics=["mae"]), data)[0]
    assert compiled["mae"] == pytest.approx(error, rel=1e-5)
    assert compiled["own"] == 0.0
    assert outcome_of_step(Ported(), linear(), data)[0]["own"] == pytest.approx(error, rel=1e-5)
