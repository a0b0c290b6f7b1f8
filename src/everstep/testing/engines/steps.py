"""What a step computes: losses, gradients, metrics and windows, against arithmetic by hand."""

from typing import Any

import keras
import numpy as np
import pytest
from keras import layers, ops

import everstep
from everstep.engine import has_accelerator
from everstep.errors import UsageError
from everstep.task import IGNORED, TokenClassificationTask
from everstep.testing import models
from everstep.testing.tasks import Make, Regression, Rig, Scripted, running, seeded


class Watched(layers.Layer):
    """Adds a tenth of the mean square of what passes to the loss."""

    def call(self, x: Any) -> Any:
        self.add_loss(0.1 * ops.mean(ops.square(x)))
        return x


def penalized() -> keras.Model:
    """A linear model with `add_loss` and a kernel regularizer."""
    dense = layers.Dense(1, use_bias=False, kernel_initializer="ones", kernel_regularizer=keras.regularizers.L2(0.5))
    return keras.Sequential([keras.Input((4,)), dense, Watched()])


def check_counts_the_models_own_losses(make: Make) -> None:
    """`add_loss` and regularizers are in the loss, of training and of evaluation, and in the gradient."""
    model = seeded(penalized)
    x, y = models.samples(model, 4)
    w = np.ones((4, 1), "float32")
    expected = np.mean((x @ w - y) ** 2) + 0.1 * np.mean((x @ w) ** 2) + 0.5 * np.sum(w**2)
    gradient = 2 * x.T @ (x @ w - y) / 4 + 0.2 * x.T @ (x @ w) / 4 + w
    with running(make, Regression(), model, keras.optimizers.SGD(0.1), data=(x, y)) as rig:
        np.testing.assert_allclose(rig.evaluate((x, y))["loss"], expected, rtol=1e-5)
        rig.run(1)
        np.testing.assert_allclose(rig.engine.read("train")["loss"], expected, rtol=1e-5)
        np.testing.assert_allclose(rig.value("model/dense/kernel"), w - 0.1 * gradient, rtol=1e-5)


def check_seeds_advance_in_training_only(make: Make) -> None:
    """Every training step draws anew; evaluation draws nothing and gives the same numbers twice."""
    model = seeded(models.mlp)
    data = models.samples(model, 16)
    with running(make, Regression(), model, data=data) as rig:
        first = rig.value("seed_generator_state")
        rig.run(3)
        after = rig.value("seed_generator_state")
        assert after[1] - first[1] == 3
        assert rig.evaluate(data) == rig.evaluate(data)
        np.testing.assert_array_equal(rig.value("seed_generator_state"), after)


def check_window_counts_samples(make: Make) -> None:
    """Loss, further scalars and metrics are means over the samples of a window, which may span runs and resets."""

    def step(task: Any, inputs: Any, model: Any, optimizer: Any, metrics: Any) -> dict[str, Any]:
        logs = Regression.train_step(task, inputs, model, optimizer, metrics)
        return {**logs, "target": ops.mean(inputs[1]), "half": 0.5}

    model = seeded(models.linear)
    x, y = models.samples(model, 10)  # batches of 4, 4 and 2
    error = x @ np.full((4, 1), 0.5, "float32") - y
    with running(make, Scripted(step), model, keras.optimizers.SGD(0.0), data=(x, y)) as rig:
        for split in [(3,), (1, 2)]:
            rig.engine.reset("train")
            rig.run(*split)
            logs = rig.engine.read("train")
            assert set(logs) == {"loss", "target", "half", "mae", "learning_rate"}
            np.testing.assert_allclose(logs["loss"], np.mean(error**2), rtol=1e-5)
            np.testing.assert_allclose(logs["mae"], np.mean(np.abs(error)), rtol=1e-5)
            np.testing.assert_allclose(logs["target"], np.mean(y), rtol=1e-4)
            assert logs["half"] == 0.5
            assert logs["learning_rate"] == 0.0


def check_metrics_reset(make: Make) -> None:
    """A reset empties metrics of any size, any number of times: the zeros that it uses are never written to."""

    class Classes(Regression):
        def build_metrics(self, training: bool = True) -> list[keras.Metric]:
            return [keras.metrics.F1Score(average=None, name="f1"), keras.metrics.R2Score(name="r2")]

        def train_step(self, inputs: Any, model: Any, optimizer: Any, metrics: Any) -> Any:
            f1, r2 = metrics
            f1.update_state(ops.one_hot(ops.zeros((4,), "int32"), 1000), ops.ones((4, 1000)))
            r2.update_state(inputs[1], model(inputs[0]))
            return {"loss": ops.mean(model(inputs[0]))}

        def validation_step(self, inputs: Any, model: Any, metrics: Any) -> Any:
            return {}

    with running(make, Classes(), seeded(models.linear)) as rig:
        for _ in range(3):
            rig.run(2)
            assert rig.value("train/f1/true_positives").sum() == 8
            assert rig.engine.read("train")["f1/0"] == 1.0
            rig.engine.reset("train")
            assert not any(value.any() for key, value in rig.engine.state().items() if key.startswith("metrics."))


def check_metrics_know_masks(make: Make) -> None:
    """Metrics of a masked model count what is not masked, in training as in evaluation, weighted or not."""

    class Tokens(Regression):
        def build_metrics(self, training: bool = True) -> list[keras.Metric]:
            return [keras.metrics.SparseCategoricalAccuracy(name="accuracy")]

        def build_losses(
            self, labels: Any, model_outputs: Any, aux_losses: Any = None, sample_weight: Any = None
        ) -> Any:
            return keras.losses.SparseCategoricalCrossentropy()(labels, model_outputs)

    def build() -> keras.Model:
        return keras.Sequential(
            [
                keras.Input((6,), dtype="int32"),
                layers.Embedding(5, 4, mask_zero=True),
                layers.Dense(5, "softmax"),
            ]
        )

    random = np.random.default_rng(0)
    model = seeded(build)
    x, every = random.integers(0, 5, (8, 6)), np.ones((8, 6), "float32")
    predicted = ops.convert_to_numpy(model(x)).argmax(-1)
    y = np.where(x == 0, predicted, random.integers(0, 5, (8, 6)))  # what is masked would be right, all of it
    right = predicted == y
    for weight in (None, random.uniform(0.5, 2.0, (8, 6)).astype("float32")):
        data = (x, y) if weight is None else (x, y, weight)
        expected = np.average(right, weights=(x != 0) * (every if weight is None else weight))
        with running(make, Tokens(), model, keras.optimizers.SGD(0.0), data=data) as rig:
            rig.run(2)
            np.testing.assert_allclose(rig.engine.read("train")["accuracy"], expected, rtol=1e-5)
            np.testing.assert_allclose(rig.evaluate(data)["accuracy"], expected, rtol=1e-5)


def check_unused_variables_get_zeros(make: Make) -> None:
    """A variable the loss does not depend on has zero gradient: weight decay still acts on it."""

    class Unused(layers.Layer):
        def build(self, shape: Any) -> None:
            self.scale = self.add_weight(shape=(3,), initializer="ones", name="scale")

        def call(self, x: Any) -> Any:
            return x

    model = seeded(lambda: keras.Sequential([keras.Input((4,)), Unused(), layers.Dense(1)]))
    optimizer = keras.optimizers.AdamW(0.1, weight_decay=0.5)
    with running(make, Regression(), model, optimizer) as rig:
        rig.run(2)
        np.testing.assert_allclose(rig.value("unused/scale"), np.full(3, 0.95**2), rtol=1e-6)
        assert not rig.value("unused/scale/momentum").any()


def check_sample_weights(make: Make) -> None:
    """`(x, y, weight)`: weights act on loss and metrics, in training and evaluation."""
    model = seeded(models.linear)
    x, y = models.samples(model, 8)
    weight = np.arange(8, dtype="float32")
    error = (x @ np.full((4, 1), 0.5, "float32") - y)[:, 0]
    with running(make, Regression(), model, keras.optimizers.SGD(0.0), data=(x, y, weight)) as rig:
        rig.run(2)
        for logs in (rig.engine.read("train"), rig.evaluate((x, y, weight))):
            np.testing.assert_allclose(logs["loss"], np.mean(weight * error**2), rtol=1e-5)
            np.testing.assert_allclose(logs["mae"], np.average(np.abs(error), weights=weight), rtol=1e-5)


def check_inputs_without_labels(make: Make) -> None:
    """`x` alone is never its own label, `(x, x)` makes it one; a dict is passed whole to the task's own loss."""

    class Own(Regression):
        def build_losses(
            self, labels: Any, model_outputs: Any, aux_losses: Any = None, sample_weight: Any = None
        ) -> Any:
            return ops.mean(ops.square(labels["x"] - model_outputs)) + ops.mean(labels["z"])

        def build_metrics(self, training: bool = True) -> list[keras.Metric]:
            return []

    inputs = {"x": keras.Input((4,), name="x"), "z": keras.Input((1,), name="z")}
    model = seeded(lambda: keras.Model(inputs, layers.Dense(4)(inputs["x"]) + 0 * inputs["z"]))
    data = {"x": np.ones((8, 4), "float32"), "z": np.full((8, 1), 2.0)}
    with running(make, Own(), model, data=data) as rig:
        rig.run(2)
        assert rig.engine.read("train")["loss"] > 2
    for alone in (data["x"], (data["x"],)):
        autoencoder = seeded(lambda: keras.Sequential([keras.Input((4,)), layers.Dense(4)]))
        with pytest.raises(UsageError, match="without labels"), running(make, Regression(), autoencoder, data=alone):
            pass
    with running(make, Regression(), autoencoder, data=(data["x"], data["x"])) as rig:
        rig.run(2)


def check_several_gradients(make: Make) -> None:
    """Two models, two optimizers, two `value_and_grad` in one step: each moves its own."""

    def step(task: Any, inputs: Any, model: Any, optimizer: Any, metrics: Any) -> dict[str, Any]:
        noise = keras.random.normal((4, 4), seed=task.noise)

        def judge() -> Any:
            return ops.mean(ops.softplus(-task.critic(inputs[0]))) + ops.mean(ops.softplus(task.critic(model(noise))))

        def forge() -> Any:
            return ops.mean(ops.softplus(-task.critic(model(noise))))

        critic_loss, grads = everstep.value_and_grad(judge, task.critic.trainable_variables)
        task.critic_optimizer.apply(grads, task.critic.trainable_variables)
        loss, grads = everstep.value_and_grad(forge, model.trainable_variables, optimizer=optimizer)
        optimizer.apply([0.5 * g for g in grads], model.trainable_variables)
        return {"loss": loss, "critic_loss": critic_loss}

    generator = seeded(lambda: keras.Sequential([keras.Input((4,)), layers.Dense(4)]))
    task = Scripted(
        step,
        critic=models.plain_mlp(),
        critic_optimizer=keras.optimizers.SGD(0.1),
        noise=keras.random.SeedGenerator(1),
    )
    with running(make, task, generator, data=models.samples(models.plain_mlp(), 80)) as rig:
        start = rig.engine.state()
        rig.run(10)
        still = [key for key, value in rig.engine.state().items() if np.array_equal(value, start[key])]
        assert not [key for key in still if key.startswith(("model/", "task.critic/", "task.noise"))]
        assert rig.value("task.critic_optimizer/iteration") == 10


def check_accumulates_gradients(make: Make) -> None:
    """With `gradient_accumulation_steps` two steps of 4 samples move as one of 8."""
    kernels = []
    for batch_size, steps in [(4, 2), (8, None)]:
        model = seeded(models.linear)
        optimizer = keras.optimizers.SGD(0.1, gradient_accumulation_steps=steps)
        with running(make, Regression(), model, optimizer, models.samples(model, 80), batch_size) as rig:
            rig.run(10 if steps else 5)
            kernels.append(rig.value("model/dense/kernel"))
    np.testing.assert_allclose(kernels[0], kernels[1], rtol=1e-5)


class Tagging(TokenClassificationTask):
    """Classifies tokens of sequences of unequal lengths."""

    def build_inputs(self, params: Any, input_context: Any = None) -> Any:
        """Returns None: tests pass their data to the engine."""
        return None


def tagger() -> keras.Model:
    """An embedding, and a classifier of tokens with a regularizer."""
    classifier = layers.Dense(3, kernel_regularizer=keras.regularizers.L2(0.1))
    return keras.Sequential([keras.Input((7,), dtype="int32"), layers.Embedding(11, 5), classifier])


def sequences(count: int) -> tuple[np.ndarray, np.ndarray]:
    """Returns tokens and labels of sequences, of which some have one label and some have seven."""
    random = np.random.default_rng(0)
    tokens, labels = random.integers(0, 11, (count, 7)), random.integers(0, 3, (count, 7))
    lengths = np.array([7, 7, 7, 7, 1, 2, 1, 1] * count)[:count]
    return tokens.astype("int32"), np.where(np.arange(7) < lengths[:, None], labels, IGNORED).astype("int32")


def check_accumulates_by_tokens(make: Make) -> None:
    """Small batches with unequal numbers of tokens train and log as the large batch of all their samples does."""
    states, logs = [], []
    for batch_size, steps in [(4, 4), (16, None)]:
        optimizer = keras.optimizers.SGD(0.5, momentum=0.9, global_clipnorm=0.05, gradient_accumulation_steps=steps)
        with running(make, Tagging(), seeded(tagger), optimizer, sequences(48), batch_size) as rig:
            rig.run(12 if steps else 3)
            logs.append(rig.engine.read("train"))
            states.append({key: value for key, value in rig.engine.state().items() if key.startswith("model/")})
    np.testing.assert_allclose(logs[0]["loss"], logs[1]["loss"], rtol=1e-6)
    np.testing.assert_allclose(logs[0]["accuracy"], logs[1]["accuracy"], rtol=1e-6)
    tolerance = 1e-3 if has_accelerator() else 1e-6  # a GPU rounds the factors of its products to fewer bits
    for key, small in states[0].items():
        difference = np.max(np.abs(small - states[1][key])) / np.max(np.abs(states[1][key]))
        assert difference < tolerance, key


def check_accumulates_by_samples(make: Make) -> None:
    """A batch of two samples counts half as much as one of four; batches of equal size give the bits of Keras."""
    kernels = []
    for batch_size, steps in [(4, 3), (10, None)]:
        model = seeded(models.linear)
        optimizer = keras.optimizers.SGD(0.1, gradient_accumulation_steps=steps)
        with running(make, Regression(), model, optimizer, models.samples(model, 10), batch_size) as rig:
            rig.run(6 if steps else 2)
            kernels.append(rig.value("model/dense/kernel"))
    np.testing.assert_allclose(kernels[0], kernels[1], rtol=1e-6)


def check_resumes_within_an_accumulation(make: Make) -> None:
    """The gradients and the weights so far are part of the state."""

    def optimizer() -> keras.Optimizer:
        return keras.optimizers.Adam(1e-2, gradient_accumulation_steps=4)

    with running(make, Tagging(), seeded(tagger), optimizer(), sequences(48)) as rig:
        rig.run(6)
        middle = rig.engine.state()
        position = rig.feed.state()
        rig.run(6)
        expected = rig.digest()
    with running(make, Tagging(), seeded(tagger), optimizer(), sequences(48)) as rig:
        rig.engine.load(middle)
        rig.feed.restore(position)
        rig.run(6)
        assert rig.digest() == expected


def check_averages_weights(make: Make) -> None:
    """`use_ema` keeps the moving average of the weights, and with a frequency puts it into them."""
    model = seeded(models.linear)
    with running(make, Regression(), model, keras.optimizers.SGD(0.1, use_ema=True, ema_momentum=0.9)) as rig:
        average = rig.value("model/dense/kernel")
        for step in range(4):
            rig.run(1)
            weight = rig.value("model/dense/kernel")
            average = weight if step == 0 else 0.9 * average + 0.1 * weight
        np.testing.assert_allclose(_average(rig), average, rtol=1e-5)
    optimizer = keras.optimizers.SGD(0.1, use_ema=True, ema_momentum=0.9, ema_overwrite_frequency=3)
    with running(make, Regression(), seeded(models.linear), optimizer) as rig:
        rig.run(2)
        assert not np.array_equal(_average(rig), rig.value("model/dense/kernel"))
        rig.run(1)
        np.testing.assert_array_equal(_average(rig), rig.value("model/dense/kernel"))


def check_conditional_assignments(make: Make) -> None:
    """`everstep.cond` in a step, around and inside `value_and_grad`: the chosen branch's assignments count."""

    def step(task: Any, inputs: Any, model: Any, optimizer: Any, metrics: Any) -> dict[str, Any]:
        even = task.steps % 2 == 0

        def loss_fn() -> Any:
            everstep.cond(even, lambda: task.inside.assign(task.inside + 1.0), lambda: task.inside.assign(task.inside))
            return task.build_losses(inputs[1], model(inputs[0], training=True))

        def learn() -> Any:
            loss, grads = everstep.value_and_grad(loss_fn, model.trainable_variables)
            optimizer.apply(grads, model.trainable_variables)
            task.learned.assign(task.learned + 1.0)
            return loss

        loss = everstep.cond(task.steps % 3 == 0, learn, lambda: task.build_losses(inputs[1], model(inputs[0])))
        task.steps.assign(task.steps + 1)
        return {"loss": loss}

    counters = {name: keras.Variable(0.0, name=name) for name in ("inside", "learned")}
    task = Scripted(step, steps=keras.Variable(0, dtype="int32", trainable=False), **counters)
    with running(make, task, seeded(models.mlp)) as rig:
        rig.run(7)  # learns in 0, 3 and 6, of which 0 and 6 are even
        assert rig.value("task.learned") == 3 == rig.value("optimizer/iteration")
        assert rig.value("task.inside") == 2
        assert rig.value("task.steps") == 7
        assert rig.value("seed_generator_state")[1] == 3


def check_builds_late_objects(make: Make) -> None:
    """Models, metrics and optimizers that build themselves on their first input are built before the first step."""

    class Late(Regression):
        second: Any
        second_optimizer: Any

        def build_metrics(self, training: bool = True) -> list[keras.Metric]:
            return [keras.metrics.R2Score(name="r2"), keras.metrics.MeanSquaredError(name="mse")]

        def train_step(self, inputs: Any, model: Any, optimizer: Any, metrics: Any) -> Any:
            loss = super().train_step(inputs, model, optimizer, metrics)["loss"]
            second, grads = everstep.value_and_grad(
                lambda: ops.mean(self.second(inputs[0]) ** 2), self.second.trainable_variables
            )
            self.second_optimizer.apply(grads, self.second.trainable_variables)
            return {"loss": loss, "second": second}

    data = models.samples(models.plain_mlp(), 80)
    digests = []
    for seed in (0, 0, 1):
        model = seeded(models.LateModel, seed)
        task = Late(second=models.LateModel(), second_optimizer=keras.optimizers.Adam(0.1))
        with running(make, task, model, data=data) as rig:
            rig.run(1)
            before = rig.engine.read("train")
            rig.run(30)
            rig.engine.reset("train")
            rig.run(4)
            after = rig.engine.read("train")
            assert after["second"] < before["second"]
            assert after["loss"] < before["loss"]
            assert rig.value("train/r2/num_samples") == 16
            digests.append(rig.digest())
    assert digests[0] == digests[1] != digests[2]


def check_model_without_call(make: Make) -> None:
    """A model that is only a holder of others is trained by a step that calls those."""

    class Pair(keras.Model):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = layers.Dense(4, "tanh"), layers.Dense(1)

    class Own(Regression):
        def inference_step(self, inputs: Any, model: Any) -> Any:
            return model.second(model.first(inputs))

        def train_step(self, inputs: Any, model: Any, optimizer: Any, metrics: Any) -> Any:
            x, y = inputs
            variables = model.trainable_variables
            loss, grads = everstep.value_and_grad(
                lambda: self.build_losses(y, self.inference_step(x, model)), variables
            )
            optimizer.apply(grads, variables)
            return {"loss": loss}

    data = models.samples(models.linear(), 40)
    with running(make, Own(), seeded(Pair), data=data) as rig:
        before = rig.evaluate(data)["loss"]
        rig.run(40)
        assert rig.evaluate(data)["loss"] < before
        assert "optimizer/model/dense_1/kernel/momentum" in rig.engine.state()


def check_gradients_can_be_changed(make: Make) -> None:
    """Gradients are dense arrays that a step may change, those of an Embedding included."""

    def tokens() -> keras.Model:
        inputs = [keras.Input((6,), dtype="int32"), layers.Embedding(models.VOCABULARY, 4)]
        return keras.Sequential([*inputs, layers.GlobalAveragePooling1D(), layers.Dense(1)])

    def step(task: Any, inputs: Any, model: Any, optimizer: Any, metrics: Any) -> dict[str, Any]:
        loss, grads = everstep.value_and_grad(
            lambda: task.build_losses(inputs[1], model(inputs[0])), model.trainable_variables
        )
        norm = ops.sqrt(sum(ops.sum(ops.square(g)) for g in grads))
        optimizer.apply([ops.zeros_like(g) for g in grads], model.trainable_variables)
        return {"loss": loss, "norm": norm}

    with running(make, Scripted(step), seeded(tokens), keras.optimizers.SGD(0.1)) as rig:
        start = rig.value("embedding/embeddings")
        rig.run(2)
        assert rig.engine.read("train")["norm"] > 0
        np.testing.assert_array_equal(rig.value("embedding/embeddings"), start)


def check_repeated_tokens_add_up(make: Make) -> None:
    """The gradient of an embedding row is the sum over its uses, also where an optimizer squares it."""
    embedding = layers.Embedding(3, 1, embeddings_initializer="ones")
    model = seeded(lambda: keras.Sequential([keras.Input((4,), dtype="int32"), embedding, layers.Flatten()]))
    tokens = np.array([[0, 0, 0, 1]], "int32")
    optimizer = keras.optimizers.Adam(0.1, beta_2=0.5)
    with running(make, Regression(), model, optimizer, (tokens, np.zeros((1, 4), "float32")), 1) as rig:
        rig.run(1)
        gradient = np.array([[1.5], [0.5], [0.0]])  # of the mean of four squares
        np.testing.assert_allclose(rig.value("embeddings/velocity"), 0.5 * gradient**2, rtol=1e-6)


def _average(rig: Rig) -> np.ndarray:
    return rig.value("kernel/average")


CHECKS = [
    check_counts_the_models_own_losses,
    check_seeds_advance_in_training_only,
    check_window_counts_samples,
    check_metrics_reset,
    check_metrics_know_masks,
    check_unused_variables_get_zeros,
    check_sample_weights,
    check_inputs_without_labels,
    check_several_gradients,
    check_accumulates_gradients,
    check_accumulates_by_tokens,
    check_accumulates_by_samples,
    check_resumes_within_an_accumulation,
    check_averages_weights,
    check_conditional_assignments,
    check_builds_late_objects,
    check_model_without_call,
    check_gradients_can_be_changed,
    check_repeated_tokens_add_up,
]
