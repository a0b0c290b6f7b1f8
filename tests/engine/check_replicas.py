"""Compares two logical devices with one, in a subprocess, since devices are configured before TensorFlow starts.

`check_replicas.py [NAME …]` runs all cases, or those named, and prints `ok NAME` for each that passes, else its error.
"""

import contextlib
import os
import pathlib
import sys
import tempfile
import traceback

os.environ["KERAS_BACKEND"] = "tensorflow"

import keras
import numpy as np
import tensorflow as tf
from keras import ops

import everstep
import everstep.export
from everstep.engine.backend import create_engine
from everstep.engine.replicas import Replicas
from everstep.engine.strategy import configured_strategy, entered
from everstep.errors import UsageError
from everstep.experiment import create_trainer
from everstep.task.grad import losses_divided_by_keras
from everstep.task.optim.building import build
from everstep.task.optim.ema import ExponentialMovingAverage
from everstep.testing import models
from everstep.testing.engines.steps import Tagging, sequences, tagger
from everstep.testing.tasks import Regression, Scripted, running, seeded

CASES = {}


def case(check):
    CASES[check.__name__] = check
    return check


def outcome_of_training(strategy, task, optimizer, steps=5, batch_size=4, build=models.plain_mlp):
    """Returns the state after some steps, and all logs; the last batch of the evaluation has one sample."""
    with strategy.scope() if strategy else contextlib.nullcontext():
        model = seeded(build)
        used = model.optimizer if model.compiled else optimizer()
        data = [20 * array for array in models.samples(model, 40)]  # large enough errors that gradients are clipped
        with running(create_engine, task(), model, used, tuple(data), batch_size) as rig:
            rig.run(steps)
            logs = rig.evaluate(tuple(array[:10] for array in data), batch_size=3)
            return rig.engine.state(), {**logs, **rig.engine.read("train")}


def same(task, optimizer, *, tolerance=1e-5, prefix=("model/", "optimizer/"), **settings):
    """Asserts that two replicas end in the same state as one device."""
    one, expected = outcome_of_training(None, task, optimizer, **settings)
    two, logs = outcome_of_training(TWO, task, optimizer, **settings)
    for key in [key for key in one if key.startswith(prefix)]:
        np.testing.assert_allclose(two[key], one[key], rtol=tolerance, atol=tolerance, err_msg=key)
    for name in expected:
        np.testing.assert_allclose(logs[name], expected[name], rtol=10 * tolerance, err_msg=name)


def steep(**settings):
    return lambda: keras.optimizers.SGD(0.1, **settings)


# -- gradients are summed over the whole batch before they are clipped or applied -------------------------------------


@case
def clipped_together():
    same(Regression, steep(global_clipnorm=1.0), batch_size=5)


@case
def clipped_one_by_one():
    same(Regression, steep(clipnorm=0.5))
    same(Regression, steep(clipvalue=0.1))


@case
def clipped_in_the_step():
    def step(task, inputs, model, optimizer, metrics):
        x, y = inputs
        variables = model.trainable_variables
        loss, grads = everstep.value_and_grad(lambda: task.build_losses(y, model(x)), variables)
        clipped, norm = tf.clip_by_global_norm(grads, 1.0)
        optimizer.apply(clipped, variables)
        return {"loss": loss, "norm": norm}

    same(lambda: Scripted(step), steep(), batch_size=5)


@case
def a_custom_tape():
    def step(task, inputs, model, optimizer, metrics):
        x, y = inputs
        with tf.GradientTape() as tape:
            loss = keras.losses.MeanSquaredError()(y, model(x, training=True))
            shared = loss / tf.distribute.get_strategy().num_replicas_in_sync
        variables = model.trainable_variables
        optimizer.apply_gradients(zip(tape.gradient(shared, variables), variables, strict=True))
        return {"loss": loss}

    same(lambda: Scripted(step), steep(global_clipnorm=1.0))


@case
def tape_and_function_in_one_step():
    def step(task, inputs, model, optimizer, metrics):
        x, y = inputs
        hidden, last = (layer.trainable_variables for layer in model.layers)
        with tf.GradientTape() as tape:
            shared = task.build_losses(y, model(x)) / tf.distribute.get_strategy().num_replicas_in_sync
        first = tape.gradient(shared, hidden)
        loss, second = everstep.value_and_grad(lambda: task.build_losses(y, model(x)), last)
        optimizer.apply([*first, *second], [*hidden, *last])
        return {"loss": loss}

    same(lambda: Scripted(step), steep())


@case
def replicas_stay_alike():
    """Random numbers that each replica draws do not make their weights differ."""

    def step(task, inputs, model, optimizer, metrics):
        x, y = inputs
        variables = model.trainable_variables
        loss, grads = everstep.value_and_grad(lambda: task.build_losses(y, model(x)), variables)
        noisy = [gradient + float(ops.shape(x)[0]) * tf.random.normal(gradient.shape) for gradient in grads]
        optimizer.apply(noisy, variables)
        return {"loss": loss}

    with TWO.scope():
        model = seeded(models.plain_mlp)
        with running(create_engine, Scripted(step), model, keras.optimizers.SGD(1.0)) as rig:
            rig.run(3)
        for variable in model.trainable_variables:
            first, second = TWO.experimental_local_results(variable._value)
            np.testing.assert_array_equal(first, second, err_msg=variable.path)


# -- float16 ---------------------------------------------------------------------------------------------------------


@case
def an_overflow_on_one_replica_skips_the_step():
    def step(task, inputs, model, optimizer, metrics):
        x, y = inputs
        loss_fn = lambda: task.build_losses(y, model(x)) * ops.where(ops.any(x > 90), np.inf, 1.0)  # noqa: E731
        loss, grads = everstep.value_and_grad(loss_fn, model.trainable_variables, optimizer=optimizer)
        optimizer.apply(grads, model.trainable_variables)
        return {"loss": ops.zeros(())}

    def scaling():
        return keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(1e-3), initial_scale=8.0)

    data = np.ones((4, 4), "float32"), np.ones((4, 1), "float32")
    data[0][3] = 99.0  # in the second half of each batch
    with TWO.scope():
        model = seeded(models.plain_mlp)
        before = model.get_weights()
        with running(create_engine, Scripted(step), model, scaling(), data) as rig:
            rig.run(2)
            assert rig.value("dynamic_scale") == 2.0, rig.value("dynamic_scale")
        for old, new in zip(before, model.get_weights(), strict=True):
            np.testing.assert_array_equal(new, old)


@case
def scaled_clipped_and_averaged():
    def make():
        averaged = ExponentialMovingAverage(keras.optimizers.SGD(0.1, global_clipnorm=1.0))
        return keras.optimizers.LossScaleOptimizer(averaged, initial_scale=8.0)

    same(Regression, make)


# -- tokens that count: one replica has long sequences, the other short ones ------------------------------------------


@case
def tokens():
    def trained_on(strategy, **settings):
        with strategy.scope() if strategy else contextlib.nullcontext():
            optimizer = keras.optimizers.SGD(0.5, momentum=0.9, global_clipnorm=0.05, **settings)
            with running(create_engine, Tagging(), seeded(tagger), optimizer, sequences(20), 8) as rig:
                rig.run(6)  # batches of 8, 8, 4
                logs = rig.evaluate(sequences(9), batch_size=4)
                return rig.engine.state(), {**logs, **rig.engine.read("train")}

    for settings in ({}, {"gradient_accumulation_steps": 2}):
        one, expected = trained_on(None, **settings)
        two, logs = trained_on(TWO, **settings)
        for key in [key for key in one if key.startswith(("model/", "optimizer/"))]:
            np.testing.assert_allclose(two[key], one[key], rtol=1e-5, atol=1e-6, err_msg=key)
        for name in expected:
            np.testing.assert_allclose(logs[name], expected[name], rtol=1e-5, err_msg=name)


# -- accumulated gradients -------------------------------------------------------------------------------------------


@case
def accumulated():
    accumulating = {"gradient_accumulation_steps": 3, "global_clipnorm": 1.0}
    same(Regression, lambda: keras.optimizers.AdamW(0.01, **accumulating), steps=7)
    scaling = keras.optimizers.LossScaleOptimizer
    same(Regression, lambda: scaling(keras.optimizers.SGD(0.1, **accumulating), initial_scale=8.0), steps=7)


@case
def rates_by_layer():
    for steps in (1, 3):
        settings = {
            "optimizer": {"type": "adamw", "adamw": {"weight_decay_rate": 0.1}},
            "layer_rates": {"factors": {"kernel": 0.25}},
            "gradient_accumulation_steps": steps,
        }
        same(Regression, lambda settings=settings: build(everstep.OptimizationConfig(settings)), steps=7)


# -- Keras's rules, and the samples of a batch -----------------------------------------------------------------------


class OwnStep(keras.Model):
    def train_step(self, data):
        x, y = data
        with tf.GradientTape() as tape:
            loss = self.compute_loss(x=x, y=y, y_pred=self(x, training=True))
        variables = self.trainable_variables
        self.optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables, strict=True))
        return {"loss": loss}


@case
def a_step_that_follows_the_rules_of_keras():
    def build():
        inputs = keras.Input((4,))
        hidden = keras.layers.Dense(4, "relu", kernel_regularizer="l2")(inputs)
        model = OwnStep(inputs, keras.layers.Dense(1)(hidden))
        model.compile(keras.optimizers.SGD(1e-3), "mse")
        return model

    def step(task, inputs, model, optimizer, metrics):
        with losses_divided_by_keras():
            model.train_step(inputs)
        return {"loss": ops.zeros(())}

    same(lambda: Scripted(step), None, build=build, batch_size=5, prefix="model/")


@case
def fewer_samples_than_replicas():
    same(Regression, steep(), batch_size=1)


@case
def arrays_of_different_lengths():
    """Arrays of several tasks in one batch: right gradients if all are cut in the same parts, else an error."""
    with TWO.scope():
        weight, replicas = keras.Variable(2.0), Replicas()

        def step(batch):
            loss = lambda: sum(ops.mean(part) for part in batch) * weight  # noqa: E731
            return [everstep.value_and_grad(loss, [weight])[1][0]]

        def grad(*lengths):
            parts = [tf.range(length, dtype="float32") for length in lengths]
            [gradient] = tf.function(lambda: replicas.run("train", step, tuple(parts)), autograph=False)()
            return [part.numpy() for part in replicas.parts(gradient)]

        np.testing.assert_allclose(grad(4, 6), [1.5 + 2.5] * 2)
        np.testing.assert_allclose(grad(5, 1), [2.0])
        with contextlib.suppress(UsageError):
            raise AssertionError(f"4 and 5 samples in the same parts: {grad(4, 5)}")


# -- a whole run -----------------------------------------------------------------------------------------------------


class Experiment(Regression):
    """The loss is a Keras loss object, which would divide by the replicas; evaluates 10 samples in batches of 3."""

    def build_model(self):
        return seeded(models.plain_mlp)

    def build_inputs(self, params, input_context=None):
        return tuple(array[: None if params.is_training else 10] for array in models.samples(models.plain_mlp(), 40))

    def build_losses(self, labels, model_outputs, aux_losses=None):
        return keras.losses.MeanSquaredError()(labels, model_outputs)

    def validation_step(self, inputs, model, metrics):
        logs = super().validation_step(inputs, model, metrics)
        return {**logs, "pair": (inputs[1], {"b": model(inputs[0]), "a": inputs[0]})}

    def aggregate_logs(self, state, step_outputs):
        labels, arrays = step_outputs["pair"]
        assert list(arrays) == ["b", "a"]
        parts = [len(leaf) for leaf in (step_outputs["loss"], labels, *arrays.values())]
        assert len(set(parts)) == 1
        assert [len(part) for part in labels] == [len(part) for part in arrays["b"]]
        return [*(state or []), parts[0]]

    def reduce_aggregated_logs(self, aggregated_logs, global_step=None):
        return {"parts": sum(aggregated_logs)}


@case
def a_run():
    def run(strategy):
        config = everstep.ExperimentConfig()
        data = {"train_data": {"global_batch_size": 4}, "validation_data": {"global_batch_size": 3}}
        config.override({"task": data, "trainer": {"train_steps": 20, "steps_per_loop": 10, "validation_interval": 10}})
        config.override({"runtime": {"distribution_strategy": strategy}})
        with tempfile.TemporaryDirectory() as directory:
            model, logs = everstep.run_experiment(Experiment(), config, directory, verbose=False, export=False)
        return logs, model.get_weights()

    expected, weights = run("one_device")
    logs, replicated = run("Mirrored")
    assert (expected.pop("parts"), logs.pop("parts")) == (4, 2 + 2 + 2 + 1)
    for name in ("validation_loss", "mae"):
        np.testing.assert_allclose(logs[name], expected[name], rtol=1e-5)
    for one, two in zip(weights, replicated, strict=True):
        np.testing.assert_allclose(two, one, rtol=1e-5, atol=1e-6)


class Convolutional(Regression):
    """A model with BatchNormalization and Dropout: variables that no gradient changes."""

    def build_model(self):
        return seeded(models.cnn)

    def build_inputs(self, params, input_context=None):
        return models.samples(models.cnn(), 12)


@case
def exported_under_a_strategy():
    """Exports at the end of a run, with the averaged weights, and by an action in the middle of it."""
    one = everstep.get_distribution_strategy("one_device")
    for name, given in {"mirrored": None, "a given strategy": one}.items():
        config = everstep.ExperimentConfig()
        data = {"train_data": {"global_batch_size": 4}, "validation_data": {"global_batch_size": 4}}
        averaged = {"optimizer_config": {"ema": {"average_decay": 0.5}}}
        config.override({"task": data, "trainer": {"train_steps": 4, "steps_per_loop": 2, **averaged}})
        config.override({"runtime": {} if given else {"distribution_strategy": name}})
        with tempfile.TemporaryDirectory() as directory:
            task, exported = Convolutional(), pathlib.Path(directory, "exported")
            run = pathlib.Path(directory, "run")
            with given.scope() if given else entered(configured_strategy(config.runtime)):
                trainer = create_trainer(config, task, train=True, evaluate=True)

            def export(logs, trainer=trainer, exported=exported):
                module = everstep.export.ExportModule(None, trainer.model)
                everstep.export.export(module, ["serve"], exported, timestamped=False)

            everstep.run_experiment(
                task, config, run, distribution_strategy=given, trainer=trainer, verbose=False, eval_actions=[export]
            )
            x = task.build_inputs(None)[0]
            at_the_end, in_between = (tf.saved_model.load(str(p)) for p in (run / "export" / "saved_model", exported))
            served = at_the_end.serve(tf.constant(x))
            kept = keras.saving.load_model(run / "export" / "model.keras")(x)
            np.testing.assert_allclose(served, kept, rtol=1e-5, atol=1e-6, err_msg=name)
            (answers,) = in_between.signatures["serving_default"](tf.constant(x)).values()
            live = trainer.model(x, training=False)
            np.testing.assert_allclose(answers, live, rtol=1e-5, atol=1e-6, err_msg=name)
            assert np.abs(served - live).max() > 1e-5, "the averages are what is exported at the end"


def main(names):
    for name in names or CASES:
        try:
            CASES[name]()
            print(f"ok {name}")
        except Exception:
            print(f"FAILED {name}\n{traceback.format_exc()}")


if __name__ == "__main__":
    cpu = tf.config.list_physical_devices("CPU")[0]
    tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)
    TWO = everstep.get_distribution_strategy("mirrored")
    main(sys.argv[1:])
