"""Trains with several processes on loopback, on an engine; run as one process of a gang (see `test_processes.py`).

`check_processes.py CASE[,ARGUMENT …] …` prints one JSON object per case: what this process ended with.
"""

import contextlib
import importlib
import json
import os
import sys

os.environ.setdefault("OMP_NUM_THREADS", "1")

import keras
import numpy as np
from keras import ops

import everstep
from everstep import gang as gangs
from everstep.checkpoint.digests import digest
from everstep.data import nest
from everstep.data.arrays import ArrayStream
from everstep.engine.backend import create_engine, join_gang
from everstep.testing import models
from everstep.testing.engines.steps import Tagging, sequences, tagger
from everstep.testing.tasks import Regression, Scripted, opened, seeded

CASES = {}


def case(run):
    CASES[run.__name__] = run
    return run


class Smallest(keras.Metric):
    """The smallest prediction of a window: not a sum."""

    def __init__(self, name="smallest", largest=False):
        super().__init__(name=name)
        self.sign = -1.0 if largest else 1.0
        self.value = self.add_variable((), keras.initializers.Constant(1e9), name="value")

    def update_state(self, y_true, y_pred, sample_weight=None):
        self.value.assign(ops.minimum(self.value, ops.min(self.sign * y_pred)))

    def result(self):
        return self.sign * self.value


class Everything(Regression):
    """Metrics of all kinds."""

    def build_metrics(self, training=True):
        return [
            keras.metrics.MeanAbsoluteError(name="mae"),
            keras.metrics.RootMeanSquaredError(name="rmse"),
            Smallest(),
            Smallest("largest", largest=True),
        ]

    def process_metrics(self, metrics, labels, model_outputs, **kwargs):
        super().process_metrics(metrics[:-1], labels, model_outputs)
        metrics[-1].update_state(labels, ops.sigmoid(model_outputs))


class Aggregating(Everything):
    def validation_step(self, inputs, model, metrics):
        x, y = inputs
        outputs = model(x, training=False)
        self.process_metrics(metrics, y, outputs)
        loss = self.build_losses(y, outputs)
        return {"loss": loss, "pair": ({"outputs": outputs, "labels": y}, [ops.mean(outputs)])}

    def aggregate_logs(self, state, step_outputs):
        (arrays, (means,)) = step_outputs["pair"]
        assert list(arrays) == ["outputs", "labels"]
        assert [part.shape for part in means] == [()] * len(step_outputs["loss"])
        assert [part.shape for part in arrays["outputs"]] == [part.shape for part in arrays["labels"]]
        return [*(state or []), *(part.numpy() for part in arrays["outputs"])]

    def reduce_aggregated_logs(self, aggregated_logs, global_step=None):
        joined = np.concatenate(aggregated_logs)
        return {"samples": len(joined), "median": float(np.median(joined))}


def built_engine(task, build, optimizer, data, batch_size):
    model = seeded(build)
    data = models.samples(model, 64) if data is None else data
    engine = create_engine(task, model, model.optimizer if model.compiled else optimizer)
    stream = ArrayStream(data, batch_size, repeat=True)
    engine.build(stream.peek(), stream.peek())
    return engine, stream, data


def outcome_of_training(task, build, optimizer=None, steps=6, batch_size=8, data=None, evaluated=25):
    """Returns the losses of all steps, the logs, and the digest of the state at the end."""
    engine, stream, data = built_engine(task, build, optimizer, data, batch_size)
    losses = []
    with opened(engine, stream) as feed:
        for _ in range(steps):
            engine.reset("train")
            assert engine.run(feed, 1) == 1
            losses.append(engine.read("train")["loss"])
        assert engine.run(feed, 3) == 3
    logs = engine.read("train")
    with opened(
        engine, ArrayStream(nest.map_leaves(lambda leaf: leaf[:evaluated], data), batch_size), "validation"
    ) as feed:
        validation = engine.evaluate(feed)[0]
    ended = {"losses": losses, "logs": logs, "validation": validation, "bad_step": engine.read_bad_step_later()()}
    return {**ended, "digest": digest(engine.state()), "engine": engine.describe()}


@case
def curve(steps="200"):
    """A loss curve and metrics of all kinds; evaluates 25 samples in batches of 8, at the end a single one."""
    return outcome_of_training(Aggregating(), models.plain_mlp, keras.optimizers.Adam(1e-2), int(steps))


class Classes(Everything):
    def build_metrics(self, training=True):
        accuracy = keras.metrics.BinaryAccuracy(name="accuracy")
        return [
            *super().build_metrics(training)[:-1],
            accuracy,
            keras.metrics.AUC(name="auc"),
            Smallest("largest", True),
        ]

    def process_metrics(self, metrics, labels, model_outputs, **kwargs):
        for metric in metrics:
            metric.update_state(ops.cast(labels > 0, "float32"), ops.sigmoid(model_outputs))


@case
def classes():
    return outcome_of_training(
        Classes(), models.plain_mlp, keras.optimizers.SGD(0.1, momentum=0.9, global_clipnorm=0.5)
    )


@case
def layers():
    """Dropout and BatchNormalization: other numbers than on one process, the same state on all."""
    return outcome_of_training(Regression(), models.cnn, keras.optimizers.Adam(1e-2))


def steep(**settings):
    return keras.optimizers.SGD(0.05, **settings)


@case
def clipped_in_the_step():
    def step(task, inputs, model, optimizer, metrics):
        x, y = inputs
        variables = model.trainable_variables
        loss, grads = everstep.value_and_grad(lambda: task.build_losses(y, model(x)), variables)
        norm = ops.sqrt(sum(ops.sum(ops.square(grad)) for grad in grads))
        optimizer.apply([grad / ops.maximum(norm, 1.0) for grad in grads], variables)
        return {"loss": loss, "norm": norm}

    return outcome_of_training(Scripted(step), models.plain_mlp, steep())


@case
def gradients_of_gradients():
    """A loss that contains the gradients of another one."""

    def step(task, inputs, model, optimizer, metrics):
        x, y = inputs
        variables = model.trainable_variables

        def loss_fn():
            _, inner = everstep.value_and_grad(lambda: task.build_losses(y, model(x)), variables)
            steeped = sum(ops.sum(ops.square(grad)) for grad in inner)
            return task.build_losses(y, model(x)) + 0.1 * steeped

        loss, grads = everstep.value_and_grad(loss_fn, variables, optimizer=optimizer)
        optimizer.apply(grads, variables)
        return {"loss": loss}

    return outcome_of_training(Scripted(step), models.plain_mlp, steep())


@case
def gradients_of_the_backend():
    """A step that takes its gradients without `everstep.value_and_grad`."""
    is_torch = keras.backend.backend() == "torch"
    library = importlib.import_module(keras.backend.backend())

    def step(task, inputs, model, optimizer, metrics):
        x, y = inputs
        variables = model.trainable_variables
        with contextlib.nullcontext() if is_torch else library.GradientTape() as tape:
            loss = task.build_losses(y, model(x))
        sources = [v.value for v in variables]
        grads = library.autograd.grad(loss, sources) if is_torch else tape.gradient(loss, sources)
        optimizer.apply(list(grads), variables)
        return {"loss": ops.stop_gradient(loss)}

    return outcome_of_training(Scripted(step), models.plain_mlp, steep(global_clipnorm=1.0))


@case
def noise():
    """Noise that the step adds to the gradients differs between processes, but not their weights."""

    def step(task, inputs, model, optimizer, metrics):
        x, y = inputs
        variables = model.trainable_variables
        loss, grads = everstep.value_and_grad(lambda: task.build_losses(y, model(x)), variables)
        noisy = [grad + keras.random.normal(grad.shape, seed=task.seed) for grad in grads]
        optimizer.apply(noisy, variables)
        return {"loss": loss}

    return outcome_of_training(Scripted(step, seed=keras.random.SeedGenerator(1)), models.plain_mlp, steep())


@case
def not_finite():
    """The loss of one slice is infinite in the second step, of no slice of the first process."""
    x, y = models.samples(models.plain_mlp(), 64)
    y[15] = np.inf
    return outcome_of_training(Regression(), models.plain_mlp, steep(), data=(x, y), steps=0)


@case
def scaled():
    """float16's scale: an overflow on the last process skips the step on all."""
    x, y = models.samples(models.plain_mlp(), 64)
    y[7] = 3e38
    optimizer = keras.optimizers.LossScaleOptimizer(steep(), initial_scale=8.0)
    return outcome_of_training(Regression(), models.plain_mlp, optimizer, data=(x, y))


@case
def accumulated():
    return outcome_of_training(
        Regression(), models.plain_mlp, keras.optimizers.AdamW(0.01, gradient_accumulation_steps=3)
    )


@case
def tokens():
    """Half of the processes have long sequences, the others short ones."""
    optimizer = keras.optimizers.SGD(0.5, momentum=0.9, global_clipnorm=0.05)
    return outcome_of_training(Tagging(), tagger, optimizer, data=sequences(64))


@case
def accumulated_tokens():
    return outcome_of_training(
        Tagging(), tagger, keras.optimizers.Adam(0.01, gradient_accumulation_steps=2), data=sequences(20), batch_size=6
    )


class OwnStep(keras.Model):
    def train_step(self, data):
        logs = super().train_step(data)
        return {**logs, "twice": 2.0}


@case
def own_step():
    """A compiled model with a step of its own, whose logs are the results of its metrics so far."""

    def build():
        inputs = keras.Input((4,))
        model = OwnStep(inputs, keras.layers.Dense(1)(keras.layers.Dense(4, "relu", kernel_regularizer="l2")(inputs)))
        model.compile(steep(), "mse", metrics=["mae", Smallest()])
        return model

    model = seeded(build)
    return outcome_of_training(everstep.CompiledTask(model), lambda: model, evaluated=24)


@case
def saved(folder, steps="10"):
    """Trains in the middle of a window, and leaves the state in a file."""
    engine, stream, _ = built_engine(Everything(), models.plain_mlp, keras.optimizers.Adam(1e-2), None, 8)
    with opened(engine, stream) as feed:
        engine.run(feed, int(steps))
        np.savez(
            f"{folder}/{gangs.current_gang().rank}.npz", **{k.replace("/", "|"): v for k, v in engine.state().items()}
        )
        engine.run(feed, 10)
    return {"digest": digest(engine.state()), "logs": engine.read("train")}


@case
def resumed(folder, steps="10"):
    """Continues from what the first process of `saved` left."""
    engine, stream, _ = built_engine(Everything(), models.plain_mlp, keras.optimizers.Adam(1e-2), None, 8)
    engine.load({key.replace("|", "/"): value for key, value in np.load(f"{folder}/0.npz").items()})
    with opened(engine, stream) as feed:
        feed.restore({"epoch": (int(steps) - 1) // 8, "batch": (int(steps) - 1) % 8 + 1})
        engine.run(feed, 10)
    return {"digest": digest(engine.state()), "logs": engine.read("train")}


def main(*cases):
    """Runs cases, each with its arguments after commas; prints one JSON object per line."""
    join_gang()
    for name, *arguments in (given.split(",") for given in cases):
        print(json.dumps({"case": name, **CASES[name](*arguments)}), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
