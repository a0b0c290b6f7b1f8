"""Models that override what `fit` calls: `train_step`, `test_step`, losses, metrics."""

from typing import Any

import keras
import numpy as np
from keras import layers, ops
from tools.fit_cases.case import LABELS, SAMPLES, WIDTH, X_TEST, Y_TEST, X, Y, call, case, compiled, stack

BACKEND = keras.backend.backend()
NOT_JAX = ("tensorflow", "torch")


def _dense(kind: type[keras.Model], units: int = 1, activation: str | None = None) -> keras.Model:
    inputs = keras.Input((WIDTH,))
    return kind(inputs, layers.Dense(units, activation)(layers.Dense(6, "tanh")(inputs)))


# -- train_step and test_step, as each backend has them ----------------------------------------------------------------


class TensorFlowStep(keras.Model):
    """Keras's guide for TensorFlow."""

    def train_step(self, data: Any) -> Any:
        """Trains by a tape."""
        import tensorflow as tf

        x, y = data
        with tf.GradientTape() as tape:
            y_pred = self(x, training=True)
            loss = self.compute_loss(y=y, y_pred=y_pred)
        variables = self.trainable_variables
        self.optimizer.apply(tape.gradient(loss, variables), variables)
        return _updated(self.metrics, loss, y, y_pred)

    def test_step(self, data: Any) -> Any:
        """Evaluates."""
        x, y = data
        y_pred = self(x, training=False)
        return _updated(self.metrics, self.compute_loss(y=y, y_pred=y_pred), y, y_pred)


class TorchStep(keras.Model):
    """Keras's guide for PyTorch."""

    def train_step(self, data: Any) -> Any:
        """Trains by autograd."""
        import torch

        x, y = data
        self.zero_grad()
        y_pred = self(x, training=True)
        loss = self.compute_loss(y=y, y_pred=y_pred)
        loss.backward()
        variables = list(self.trainable_weights)
        with torch.no_grad():
            self.optimizer.apply([variable.value.grad for variable in variables], variables)
        return _updated(self.metrics, loss, y, y_pred)

    test_step = TensorFlowStep.test_step


class JaxStep(keras.Model):
    """Keras's guide for JAX."""

    def _loss(self, trainable: Any, others: Any, x: Any, y: Any, training: bool) -> Any:
        y_pred, others = self.stateless_call(trainable, others, x, training=training)
        return self.compute_loss(x, y, y_pred), (y_pred, others)

    def train_step(self, state: Any, data: Any) -> Any:
        """Trains by a transformed function."""
        import jax

        trainable, others, optimizer, metrics = state
        x, y = data
        function = jax.value_and_grad(self._loss, has_aux=True)
        (loss, (y_pred, others)), gradients = function(trainable, others, x, y, True)
        trainable, optimizer = self.optimizer.stateless_apply(optimizer, gradients, trainable)
        logs, metrics = self._updated(metrics, loss, y, y_pred)
        return logs, (trainable, others, optimizer, metrics)

    def test_step(self, state: Any, data: Any) -> Any:
        """Evaluates."""
        trainable, others, metrics = state
        x, y = data
        loss, (y_pred, others) = self._loss(trainable, others, x, y, False)
        logs, metrics = self._updated(metrics, loss, y, y_pred)
        return logs, (trainable, others, metrics)

    def _updated(self, values: Any, loss: Any, y: Any, y_pred: Any) -> Any:
        logs, after, position = {}, [], 0
        for metric in self.metrics:
            these = values[position : position + len(metric.variables)]
            position += len(these)
            arguments = (loss,) if metric.name == "loss" else (y, y_pred)
            these = metric.stateless_update_state(these, *arguments)
            logs[metric.name] = metric.stateless_result(these)
            after += these
        return logs, after


def _updated(metrics: Any, loss: Any, y: Any, y_pred: Any) -> Any:
    for metric in metrics:
        metric.update_state(*((loss,) if metric.name == "loss" else (y, y_pred)))
    return {metric.name: metric.result() for metric in metrics}


STEP = {"tensorflow": TensorFlowStep, "jax": JaxStep, "torch": TorchStep}[BACKEND]


@case("steps", "train_step and test_step")
def own_steps():
    model = compiled(_dense(STEP), metrics=["mae"])
    return call(model, X, Y, validation_data=(X_TEST, Y_TEST))


@case("steps", "train_step alone")
def own_train_step():
    class Trains(STEP):
        test_step = keras.Model.test_step

    return call(compiled(_dense(Trains), metrics=["mae"]), X, Y, validation_data=(X_TEST, Y_TEST))


@case("steps", "test_step alone")
def own_test_step():
    class Evaluates(STEP):
        train_step = keras.Model.train_step

    return call(compiled(_dense(Evaluates), metrics=["mae"]), X, Y, validation_data=(X_TEST, Y_TEST))


@case("steps", "train_step with steps_per_execution", backends=("jax", "tensorflow"))
def own_step_several_at_once():
    return call(compiled(_dense(STEP), metrics=["mae"], steps_per_execution=2), X, Y, batch_size=10)


@case("steps", "train_step that calls Keras's")
def calls_keras():
    class Around(keras.Model):
        def train_step(self, *args: Any) -> Any:
            return super().train_step(*args)

    return call(compiled(_dense(Around), metrics=["mae"]), X, Y)


@case("steps", "train_step with logs of its own", backends=NOT_JAX)
def own_logs():
    class Logs(STEP):
        def train_step(self, data: Any) -> Any:
            logs = super().train_step(data)
            return {"mine": logs["loss"] * 2.0, **logs}

    return call(compiled(_dense(Logs)), X, Y)


@case("steps", "a GAN with two optimizers", backends=NOT_JAX)
def gan():
    model = Gan()
    model.compile(keras.optimizers.Adam(0.01), keras.optimizers.Adam(0.02))
    return call(model, X)


class Gan(keras.Model):
    """Two networks, two optimizers, and metrics of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.critic = stack((WIDTH,), layers.Dense(6, "relu"), layers.Dense(1))
        self.generator = stack((3,), layers.Dense(WIDTH))
        self.seeds = keras.random.SeedGenerator(3)
        self.trackers = [keras.metrics.Mean(name="critic_loss"), keras.metrics.Mean(name="generator_loss")]

    def compile(self, critic_optimizer: Any, generator_optimizer: Any) -> None:
        """Takes both optimizers."""
        super().compile(optimizer=critic_optimizer)
        self.generator_optimizer = generator_optimizer

    def call(self, inputs: Any) -> Any:
        """Judges."""
        return self.critic(inputs)

    def train_step(self, data: Any) -> Any:
        """Trains one after the other."""
        size = ops.shape(data)[0]

        def critic_loss() -> Any:
            made = self.generator(keras.random.normal((size, 3), seed=self.seeds))
            return ops.mean(ops.softplus(-self.critic(data))) + ops.mean(ops.softplus(self.critic(made)))

        def generator_loss() -> Any:
            made = self.generator(keras.random.normal((size, 3), seed=self.seeds))
            return ops.mean(ops.softplus(-self.critic(made)))

        turns = [
            (critic_loss, self.critic, self.optimizer),
            (generator_loss, self.generator, self.generator_optimizer),
        ]
        for tracker, (function, network, optimizer) in zip(self.trackers, turns, strict=True):
            tracker.update_state(_descend(function, network.trainable_variables, optimizer))
        return {tracker.name: tracker.result() for tracker in self.trackers}

    @property
    def metrics(self) -> Any:
        """Both losses."""
        return self.trackers


def _descend(function: Any, variables: Any, optimizer: Any) -> Any:
    if BACKEND == "tensorflow":
        import tensorflow as tf

        with tf.GradientTape() as tape:
            loss = function()
        gradients = tape.gradient(loss, variables)
    else:
        import torch

        for variable in variables:
            variable.value.grad = None
        loss = function()
        loss.backward()
        gradients = [variable.value.grad for variable in variables]
        with torch.no_grad():
            optimizer.apply(gradients, variables)
        return loss.detach()
    optimizer.apply(gradients, variables)
    return loss


# -- losses, metrics and calls -----------------------------------------------------------------------------------------


@case("steps", "compute_loss")
def own_loss():
    class Loss(keras.Model):
        def compute_loss(
            self, x: Any = None, y: Any = None, y_pred: Any = None, sample_weight: Any = None, training: bool = True
        ) -> Any:
            return ops.mean((y - y_pred) ** 2) + 0.1 * ops.mean(ops.abs(x))

    return call(compiled(_dense(Loss), metrics=["mae"]), X, Y, validation_data=(X_TEST, Y_TEST))


@case("steps", "compute_loss and a tracker")
def own_loss_and_tracker():
    class Loss(keras.Model):
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            super().__init__(*args, **kwargs)
            self.tracker = keras.metrics.Mean(name="own")

        def compute_loss(
            self, x: Any = None, y: Any = None, y_pred: Any = None, sample_weight: Any = None, training: bool = True
        ) -> Any:
            loss = ops.mean((y - y_pred) ** 2)
            self.tracker.update_state(loss)
            return loss

    return call(compiled(_dense(Loss)), X, Y, validation_data=(X_TEST, Y_TEST))


@case("steps", "compute_metrics")
def own_metrics():
    class Metrics(keras.Model):
        def compute_metrics(self, x: Any, y: Any, y_pred: Any, sample_weight: Any = None) -> Any:
            return {**super().compute_metrics(x, y, y_pred, sample_weight), "zero": ops.zeros(())}

    return call(compiled(_dense(Metrics), metrics=["mae"]), X, Y, validation_data=(X_TEST, Y_TEST))


@case("steps", "get_metrics_result")
def own_metrics_result():
    class Results(keras.Model):
        def get_metrics_result(self) -> Any:
            return {f"own_{name}": value for name, value in super().get_metrics_result().items()}

    return call(compiled(_dense(Results), metrics=["mae"]), X, Y, validation_data=(X_TEST, Y_TEST))


@case("steps", "a variational autoencoder with add_loss")
def variational_autoencoder():
    class Sampling(layers.Layer):
        def __init__(self) -> None:
            super().__init__()
            self.seeds = keras.random.SeedGenerator(4)

        def call(self, inputs: Any) -> Any:
            mean, spread = inputs
            self.add_loss(-0.01 * ops.mean(1 + spread - ops.square(mean) - ops.exp(spread)))
            return mean + ops.exp(0.5 * spread) * keras.random.normal(ops.shape(mean), seed=self.seeds)

    inputs = keras.Input((WIDTH,))
    code = Sampling()([layers.Dense(2)(inputs), layers.Dense(2)(inputs)])
    return call(compiled(keras.Model(inputs, layers.Dense(WIDTH)(code))), X, X)


@case("steps", "distillation by compute_loss")
def distillation():
    class Distiller(keras.Model):
        def __init__(self) -> None:
            super().__init__()
            self.student = stack((WIDTH,), layers.Dense(3))
            self.teacher = stack((WIDTH,), layers.Dense(3))

        def call(self, inputs: Any) -> Any:
            return self.student(inputs)

        def compute_loss(
            self, x: Any = None, y: Any = None, y_pred: Any = None, sample_weight: Any = None, training: bool = True
        ) -> Any:
            taught = ops.softmax(self.teacher(x, training=False))
            own = keras.losses.sparse_categorical_crossentropy(y, y_pred, from_logits=True)
            return ops.mean(own) + 0.5 * ops.mean(keras.losses.kl_divergence(taught, ops.softmax(y_pred)))

    model = Distiller()
    model.teacher.trainable = False
    model.compile("adam", metrics=["accuracy"])
    return call(model, X, LABELS)


@case("steps", "contrastive learning by compute_loss")
def contrastive():
    class Contrasts(keras.Model):
        def compute_loss(
            self, x: Any = None, y: Any = None, y_pred: Any = None, sample_weight: Any = None, training: bool = True
        ) -> Any:
            unit = y_pred / (ops.norm(y_pred, axis=1, keepdims=True) + 1e-6)
            return ops.mean(ops.logsumexp(unit @ ops.transpose(unit), axis=1) - 1.0)

    return call(compiled(_dense(Contrasts, units=3), loss=None), X)


@case("steps", "call with a mask and training")
def call_with_mask():
    class Masked(keras.Model):
        def __init__(self) -> None:
            super().__init__()
            self.embedding, self.out = layers.Embedding(6, 3, mask_zero=True), layers.Dense(1)
            self.pool = layers.GlobalAveragePooling1D()

        def call(self, inputs: Any, training: bool = False, mask: Any = None) -> Any:
            return self.out(self.pool(self.embedding(inputs)))

    words = np.stack([np.arange(4) * (LABELS[i] + 1) % 6 for i in range(SAMPLES)]).astype("int32")
    return call(compiled(Masked(), "sgd"), words, Y)
