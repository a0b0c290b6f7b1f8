"""A ported step with TensorFlow's tape: it runs on TensorFlow; on other backends the error lists its lines."""

import functools
import inspect

import keras
import numpy as np
import pytest
from keras import ops

import everstep
from everstep.errors import UsageError

pytestmark = pytest.mark.backend


class Line(everstep.Task):
    """Learns that y is the sum of x."""

    def build_model(self):
        return keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])

    def build_inputs(self, params, input_context=None):
        x = np.random.default_rng(0).normal(size=(64, 4)).astype("float32")
        return x, x.sum(axis=1, keepdims=True)

    def build_losses(self, labels, model_outputs, aux_losses=None):
        return ops.mean((labels - model_outputs) ** 2)


class TapeLine(Line):
    def train_step(self, inputs, model, optimizer, metrics):
        import tensorflow as tf

        features, labels = inputs
        with tf.GradientTape() as tape:
            outputs = model(features, training=True)
            loss = self.build_losses(labels, outputs, aux_losses=model.losses)
        tvars = model.trainable_variables
        grads = tape.gradient(loss, tvars)
        optimizer.apply_gradients(list(zip(grads, tvars, strict=True)))
        self.process_metrics(metrics, labels, outputs)
        return {self.loss: loss}


class BothWays(TapeLine):
    """Has a tape in a branch that other backends do not take."""

    def train_step(self, inputs, model, optimizer, metrics):
        if keras.backend.backend() == "tensorflow":
            return super().train_step(inputs, model, optimizer, metrics)
        return Line.train_step(self, inputs, model, optimizer, metrics)


def gradients(task, features, labels, model):
    import tensorflow as tf

    with tf.GradientTape() as tape:
        loss = task.build_losses(labels, model(features, training=True))
    return loss, tape.gradient(loss, model.trainable_variables)


def by_way_of(function):
    @functools.wraps(function)
    def called(*args):
        return function(*args)

    return called


wrapped_gradients = by_way_of(gradients)


class TapeInHelper(Line):
    """Opens its tape in a function of the module."""

    def train_step(self, inputs, model, optimizer, metrics):
        loss, grads = wrapped_gradients(self, *inputs, model)
        optimizer.apply(grads, model.trainable_variables)
        return {self.loss: loss}


class TapeInStaticMethod(TapeInHelper):
    """Opens its tape in a static method."""

    @staticmethod
    def gradients(task, features, labels, model):
        import tensorflow as tf

        with tf.GradientTape() as tape:
            loss = task.build_losses(labels, model(features, training=True))
        return loss, tape.gradient(loss, model.trainable_variables)

    def train_step(self, inputs, model, optimizer, metrics):
        loss, grads = self.gradients(self, *inputs, model)
        optimizer.apply(grads, model.trainable_variables)
        return {self.loss: loss}


class FailingLine(Line):
    """Fails for another reason."""

    def train_step(self, inputs, model, optimizer, metrics):
        raise RuntimeError("something else")


class ScalingTape(Line):
    """Scales the loss and unscales the gradients with the methods of Keras 2."""

    def train_step(self, inputs, model, optimizer, metrics):
        import tensorflow as tf

        features, labels = inputs
        with tf.GradientTape() as tape:
            outputs = tf.cast(model(features, training=True), tf.float32)
            loss = self.build_losses(labels, outputs)
            scaled_loss = optimizer.get_scaled_loss(loss)
        grads = tape.gradient(scaled_loss, model.trainable_variables)
        grads = optimizer.get_unscaled_gradients(grads)
        norm = tf.linalg.global_norm(grads)  # infinite while the scale is still too large
        self.largest.assign(tf.where(tf.math.is_finite(norm), tf.maximum(self.largest, norm), self.largest))
        optimizer.apply_gradients(zip(grads, model.trainable_variables, strict=True))
        return {self.loss: loss}


class ScalingLine(Line):
    def train_step(self, inputs, model, optimizer, metrics):
        features, labels = inputs

        def loss_fn():
            return self.build_losses(labels, ops.cast(model(features, training=True), "float32"))

        loss, grads = everstep.value_and_grad(loss_fn, model.trainable_variables, optimizer=optimizer)
        optimizer.apply(grads, model.trainable_variables)
        return {self.loss: loss}


def train(task, directory, optimizer="adam", **runtime):
    params = everstep.ExperimentConfig(runtime=everstep.RuntimeConfig(**runtime))
    rate = {"learning_rate": {"type": "constant", "constant": {"learning_rate": 0.05}}}
    params.override({"trainer": {"train_steps": 60, "steps_per_loop": 20, "optimizer_config": rate}})
    params.trainer.optimizer_config.optimizer.type = optimizer
    logs = []
    everstep.run_experiment(task, params, directory, "train", train_actions=[logs.append], export=False, verbose=False)
    return [log["training_loss"] for log in logs]


@pytest.mark.skipif(keras.backend.backend() != "tensorflow", reason="a tape is TensorFlow's")
def test_a_tape_runs_on_tensorflow(tmp_path):
    losses = train(TapeLine(), tmp_path / "tape")
    assert losses == pytest.approx(train(Line(), tmp_path / "plain"), rel=1e-4)
    assert losses[-1] < losses[0] / 5


@pytest.mark.skipif(keras.backend.backend() != "tensorflow", reason="a tape is TensorFlow's")
def test_a_tape_with_gradients_unscaled_by_the_step_trains_in_float16(tmp_path):
    task = ScalingTape()
    task.largest = keras.Variable(0.0, name="largest")
    losses = train(task, tmp_path / "tape", "sgd", mixed_precision_dtype="float16")
    assert 0 < float(task.largest.numpy()) < 100  # gradients of the unscaled loss
    plain = train(ScalingLine(), tmp_path / "plain", "sgd", mixed_precision_dtype="float16")
    assert losses == pytest.approx(plain, rel=1e-3)
    assert losses[-1] < losses[0] / 5


@pytest.mark.skipif(keras.backend.backend() == "tensorflow", reason="a tape is TensorFlow's")
@pytest.mark.parametrize(
    ("task", "function", "gradient"),
    [
        (TapeLine, TapeLine.train_step, "grads = tape.gradient(loss, tvars)"),
        (TapeInHelper, gradients, "return loss, tape.gradient(loss, model.trainable_variables)"),
        (
            TapeInStaticMethod,
            TapeInStaticMethod.gradients,
            "return loss, tape.gradient(loss, model.trainable_variables)",
        ),
    ],
)
def test_a_tape_on_another_backend_is_refused_with_its_lines(task, function, gradient, tmp_path):
    with pytest.raises(UsageError) as refused:
        train(task(), tmp_path / "run")
    source, first = inspect.getsourcelines(function)
    text = str(refused.value)
    assert "everstep.value_and_grad(loss_fn, variables, optimizer=optimizer)" in text
    for code in ("with tf.GradientTape() as tape:", gradient):
        (offset,) = [number for number, line in enumerate(source) if line.strip() == code]
        assert f"  {__file__}:{first + offset}: {code}" in text.splitlines()
    assert not (tmp_path / "run").exists()


def test_a_tape_in_an_unused_branch_is_accepted(tmp_path):
    losses = train(BothWays(), tmp_path / "run")
    assert losses[-1] < losses[0] / 5


def test_other_errors_are_unchanged(tmp_path):
    with pytest.raises(RuntimeError, match="something else"):
        train(FailingLine(), tmp_path / "run")
