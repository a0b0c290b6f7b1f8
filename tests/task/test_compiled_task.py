"""Compiled Keras models: the same numbers as `fit`, and models with their own steps."""

import keras
import numpy as np
import pytest
from keras import layers, ops

import everstep
from everstep.data.arrays import ArrayStream
from everstep.data.wrappers import MappedStream, class_weighted
from everstep.engine.backend import create_engine
from everstep.errors import UsageError
from everstep.task.compiled import CompiledTask
from everstep.testing import models
from everstep.testing.problems import raises_problem
from everstep.testing.tasks import running, seeded

pytestmark = pytest.mark.backend

BACKEND = keras.backend.backend()
only_tensorflow = pytest.mark.skipif(BACKEND != "tensorflow", reason="a GradientTape is TensorFlow's")
only_jax = pytest.mark.skipif(BACKEND != "jax", reason="the stateless signature is JAX's")


def compiled_model(build=models.plain_mlp, optimizer="sgd", loss="mse", **options):
    def make():
        model = build()
        model.compile(optimizer, loss, **options)
        return model

    return seeded(make)


def on_engine(model, data=None, batch_size=4):
    return running(create_engine, CompiledTask(model), model, model.optimizer, data, batch_size)


def two_outputs():
    x = keras.Input((4,))
    hidden = layers.Dense(4, "tanh")(x)
    return keras.Model(x, {"a": layers.Dense(1, name="a")(hidden), "b": layers.Dense(1, name="b")(hidden)})


def test_requires_a_compiled_model():
    with pytest.raises(UsageError) as caught:
        CompiledTask(models.mlp())
    assert (caught.value.key, caught.value.reason) == ("model", "is not compiled")
    model = models.mlp()
    model.compile(optimizer=None, loss="mse")
    with pytest.raises(UsageError) as caught:
        CompiledTask(model)
    assert (caught.value.received, caught.value.reason) == (model.name, "has no optimizer")
    with raises_problem(key="model", reason="is None, expected a keras.Model$"):
        CompiledTask(None)


@pytest.mark.parametrize("weighted", [False, True])
def test_same_numbers_as_fit(weighted):
    options = {"metrics": ["mae"], "weighted_metrics": ["mse"]}
    fitted, ours = (compiled_model(optimizer=keras.optimizers.Adam(1e-2), **options) for _ in range(2))
    x, y = models.samples(ours, 40)
    data = (x, y, np.linspace(0, 2, 40, dtype="float32")) if weighted else (x, y)
    history = fitted.fit(*data[:2], 4, epochs=2, sample_weight=data[2] if weighted else None, shuffle=False, verbose=0)
    with on_engine(ours, data) as rig:
        for epoch in range(2):
            rig.engine.reset("train")
            rig.run(10)
            logs = rig.engine.read("train")
            for name, values in history.history.items():
                assert logs[name] == pytest.approx(values[epoch], rel=1e-5)
        evaluated = fitted.evaluate(
            *data[:2], 4, sample_weight=data[2] if weighted else None, verbose=0, return_dict=True
        )
        assert rig.evaluate(data) == pytest.approx(evaluated, rel=1e-4)
        rig.engine.push()
    for one, other in zip(ours.get_weights(), fitted.get_weights(), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-7)


@pytest.mark.daily("torch")
def test_same_numbers_as_fit_with_two_outputs():
    options = {"loss": {"a": "mse", "b": "mae"}, "metrics": {"a": ["mae"]}, "loss_weights": {"a": 1.0, "b": 0.5}}
    fitted, ours = (compiled_model(two_outputs, **options) for _ in range(2))
    x, y = models.samples(models.linear(), 40)
    data = (x, {"a": y, "b": 2 * y})
    history = fitted.fit(*data, 4, epochs=2, shuffle=False, verbose=0).history
    with on_engine(ours, data) as rig:
        for epoch in range(2):
            rig.engine.reset("train")
            rig.run(10)
            logs = rig.engine.read("train")
            assert set(history) <= set(logs)
            for name, values in history.items():
                assert logs[name] == pytest.approx(values[epoch], rel=1e-5), name
        before = rig.digest()
        evaluated = fitted.evaluate(*data, 4, verbose=0, return_dict=True)
        assert rig.evaluate(data) == pytest.approx(evaluated, rel=1e-4)
        assert rig.digest() == before


@pytest.mark.daily("torch")
def test_class_weights_are_those_of_fit():
    def build():
        return keras.Sequential([keras.Input((4,)), layers.Dense(3, "softmax")])

    fitted, ours = (compiled_model(build, loss="sparse_categorical_crossentropy") for _ in range(2))
    x, _ = models.samples(ours, 40)
    y = x[:, :3].argmax(1)
    weights = {0: 1.0, 1: 5.0, 2: 0.5}
    fitted.fit(x, y, 4, shuffle=False, verbose=0, class_weight=weights)
    with on_engine(ours, MappedStream(ArrayStream((x, y), 4, repeat=True), class_weighted(weights))) as rig:
        rig.run(10)
        rig.engine.push()
    np.testing.assert_allclose(ours.get_weights()[0], fitted.get_weights()[0], rtol=1e-5)


def test_subclassed_and_float16():
    model = compiled_model(
        models.LateModel, keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(0.01)), metrics=["mae"]
    )
    with on_engine(model, models.samples(models.linear(), 40)) as rig:
        rig.run(3)
        first = rig.engine.read("train")["loss"]
        rig.engine.reset("train")
        rig.run(20)
        assert rig.engine.read("train")["loss"] < first


class TapeStep(keras.Model):
    """Keras's own example of a customised `train_step` and `test_step`."""

    def train_step(self, data):
        import tensorflow as tf

        x, y = data
        with tf.GradientTape() as tape:
            y_pred = self(x, training=True)
            loss = self.compute_loss(y=y, y_pred=y_pred)
        self.optimizer.apply(tape.gradient(loss, [v.value for v in self.trainable_weights]), self.trainable_weights)
        return self._logs(loss, y, y_pred)

    def test_step(self, data):
        x, y = data
        y_pred = self(x, training=False)
        return self._logs(self.compute_loss(y=y, y_pred=y_pred), y, y_pred)

    def _logs(self, loss, y, y_pred):
        for metric in self.metrics:
            if metric.name == "loss":
                metric.update_state(loss)
            else:
                metric.update_state(y, y_pred)
        return {metric.name: metric.result() for metric in self.metrics if metric.name == "loss"} | {
            "mae": self.metrics[1].result()["mae"]
        }


class BackwardStep(TapeStep):
    """Keras's own example of a customised `train_step` on PyTorch."""

    def train_step(self, data):
        import torch

        x, y = data
        self.zero_grad()
        y_pred = self(x, training=True)
        loss = self.compute_loss(y=y, y_pred=y_pred)
        loss.backward()
        with torch.no_grad():
            self.optimizer.apply([v.value.grad for v in self.trainable_weights], self.trainable_weights)
        return self._logs(loss, y, y_pred)


class TapeTrainOnly(TapeStep):
    test_step = keras.Model.test_step


class StatelessStep(keras.Model):
    """Keras's own example of a customised `train_step` on JAX."""

    def compute_loss_and_updates(self, trainable, non_trainable, metrics, x, y, training):
        y_pred, non_trainable = self.stateless_call(trainable, non_trainable, x, training=training)
        loss = ops.mean(ops.square(y - y_pred))
        return loss, (y_pred, non_trainable, metrics)

    def train_step(self, state, data):
        import jax

        trainable, non_trainable, optimizer, metrics = state
        x, y = data
        grad_fn = jax.value_and_grad(self.compute_loss_and_updates, has_aux=True)
        (loss, (y_pred, non_trainable, metrics)), grads = grad_fn(trainable, non_trainable, metrics, x, y, True)
        trainable, optimizer = self.optimizer.stateless_apply(optimizer, grads, trainable)
        metrics, logs = self._updated(metrics, loss, y, y_pred)
        return logs, (trainable, non_trainable, optimizer, metrics)

    def test_step(self, state, data):
        trainable, non_trainable, metrics = state
        x, y = data
        loss, (y_pred, _, metrics) = self.compute_loss_and_updates(trainable, non_trainable, metrics, x, y, False)
        metrics, logs = self._updated(metrics, loss, y, y_pred)
        return logs, (trainable, non_trainable, metrics)

    def _updated(self, variables, loss, y, y_pred):
        logs, new = {}, []
        for metric in self.metrics:
            own = variables[len(new) : len(new) + len(metric.variables)]
            own = (
                metric.stateless_update_state(own, loss)
                if metric.name == "loss"
                else metric.stateless_update_state(own, y, y_pred)
            )
            result = metric.stateless_result(own)
            logs |= result if isinstance(result, dict) else {metric.name: result}
            new += own
        return new, logs


def functional(cls):
    rate = 0.0 if BACKEND == "torch" else 0.2  # there `fit` draws from PyTorch's global generator

    def build():
        x = keras.Input((4,))
        return cls(x, layers.Dense(1)(layers.Dropout(rate)(layers.Dense(8, "tanh")(x))))

    return build


OWN = {"tensorflow": TapeStep, "jax": StatelessStep, "torch": BackwardStep}[BACKEND]


def test_own_steps_log_the_same_as_fit():
    fitted, ours = (compiled_model(functional(OWN), metrics=["mae"]) for _ in range(2))
    data = models.samples(models.linear(), 40)
    history = fitted.fit(*data, 4, epochs=2, shuffle=False, verbose=0).history
    with on_engine(ours, data) as rig:
        for epoch in range(2):
            rig.engine.reset("train")
            rig.run(10)
            logs = rig.engine.read("train")
            assert set(logs) == {"loss", "mae", "learning_rate"}
            for name, values in history.items():
                assert logs[name] == pytest.approx(values[epoch], rel=1e-5), name
        before, logs = rig.digest(), rig.engine.read("train")
        evaluated = fitted.evaluate(*data, 4, verbose=0, return_dict=True)
        for _ in range(2):
            assert rig.evaluate(data) == pytest.approx(evaluated, rel=1e-4)
        assert rig.digest() == before
        assert rig.engine.read("train") == logs


@only_tensorflow
def test_overriding_one_step_does_not_change_the_other():
    fitted, ours = (compiled_model(functional(TapeTrainOnly), metrics=["mae"]) for _ in range(2))
    data = models.samples(models.linear(), 42)
    history = fitted.fit(*data, 4, shuffle=False, verbose=0).history
    with on_engine(ours, data) as rig:
        rig.run(11)
        assert rig.engine.read("train")["mae"] == pytest.approx(history["mae"][0], rel=1e-5)
        evaluated = fitted.evaluate(*data, 4, verbose=0, return_dict=True)
        assert rig.evaluate(data) == pytest.approx(evaluated, rel=1e-4)


def test_steps_for_another_backend_are_refused():
    other = TapeStep if BACKEND == "jax" else StatelessStep
    with raises_problem(key=f"{other.__name__}.train_step", reason=rf"\(.*backend '{BACKEND}'", remedy="everstep.Task"):
        CompiledTask(compiled_model(functional(other)))


@only_jax
def test_stateless_steps_get_the_lists_of_keras():
    seen = []

    class Looking(StatelessStep):
        def train_step(self, state, data):
            seen.append([len(group) for group in state])
            return super().train_step(state, data)

    model = compiled_model(functional(Looking), metrics=["mae"])
    with on_engine(model, models.samples(models.linear(), 8)) as rig:
        rig.run(1)
    assert seen[0] == [4, 1, 2, 4]  # weights, the seed, iteration and learning rate, two metrics


@only_tensorflow
@pytest.mark.parametrize("late", [False, True])
def test_a_model_with_its_own_step_needs_no_call(late):
    class Autoencoder(keras.Model):
        def __init__(self):
            super().__init__()
            self.encoder = keras.Sequential([layers.Dense(2)] if late else [keras.Input((4,)), layers.Dense(2)])
            self.decoder = keras.Sequential([layers.Dense(4)] if late else [keras.Input((2,)), layers.Dense(4)])
            self.tracker = keras.metrics.Mean(name="loss")

        @property
        def metrics(self):
            return [self.tracker]

        def train_step(self, x):
            import tensorflow as tf

            with tf.GradientTape() as tape:
                loss = ops.mean(ops.square(self.decoder(self.encoder(x)) - x))
            grads = tape.gradient(loss, [v.value for v in self.trainable_weights])
            self.optimizer.apply(grads, self.trainable_weights)
            self.tracker.update_state(loss)
            return {"loss": self.tracker.result()}

        def test_step(self, x):
            self.tracker.update_state(ops.mean(ops.square(self.decoder(self.encoder(x)) - x)))
            return {"loss": self.tracker.result()}

    x = models.samples(models.linear(), 40)[0]
    with on_engine(compiled_model(Autoencoder, keras.optimizers.Adam(0.1), loss=None), x) as rig:
        before = rig.evaluate(x)["loss"]
        rig.run(20)
        assert rig.evaluate(x)["loss"] < before / 2


@pytest.mark.daily("torch")
def test_a_model_whose_call_takes_no_training_argument():
    class Plain(keras.Model):
        def __init__(self):
            super().__init__()
            self.dense = layers.Dense(1)

        def call(self, x):
            return self.dense(x)

    with on_engine(compiled_model(Plain), models.samples(models.linear(), 8)) as rig:
        rig.run(2)


@pytest.mark.daily("torch")
def test_the_default_task_uses_the_compiled_loss():
    class Bare(everstep.Task):
        def build_inputs(self, params, input_context=None):
            return None

    model = compiled_model(models.linear)
    x, y = models.samples(model, 8)
    with running(create_engine, Bare(), model, model.optimizer, data=(x, y)) as rig:
        assert rig.evaluate((x, y))["loss"] == pytest.approx(np.mean((x @ np.full((4, 1), 0.5) - y) ** 2), rel=1e-5)
