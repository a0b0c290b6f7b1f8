"""The three contenders of the loop benchmark on one backend: `python -m benchmarks.loop_contenders jax 5`."""

import functools
import json
import sys
import tempfile
import time
from typing import Any

from everstep.engine import backend

backend.select(sys.argv[1] if len(sys.argv) > 1 else None)

import keras  # noqa: E402
import numpy as np  # noqa: E402

from everstep.experiment import create_trainer, run_experiment  # noqa: E402
from everstep.experiment_config import ExperimentConfig  # noqa: E402
from everstep.loop.trainer import Trainer  # noqa: E402
from everstep.recipes.mnist_data import load_mnist  # noqa: E402
from everstep.task.classification import ClassificationTask  # noqa: E402

BATCH, BLOCK, STEPS, WARM = 32, 100, 3000, 600


@functools.cache
def data() -> tuple[np.ndarray, np.ndarray]:
    x, y = load_mnist()
    return (x.reshape(-1, 784) / np.float32(255)).astype("float32"), y.astype("int32")


def build_model() -> keras.Model:
    layers = keras.layers
    return keras.Sequential([keras.Input((784,)), layers.Dense(32, activation="relu"), layers.Dense(10)])


LOSS = functools.partial(keras.losses.SparseCategoricalCrossentropy, from_logits=True)


# -- fit -----------------------------------------------------------------------------------------------------------


def fit() -> float:
    model = build_model()
    model.compile(keras.optimizers.Adam(1e-3), LOSS(), metrics=["accuracy"])
    x, y = data()
    model.fit(x[: BATCH * 200], y[: BATCH * 200], batch_size=BATCH, verbose=0)
    begin = time.perf_counter()
    model.fit(x, y, batch_size=BATCH, verbose=0)
    return (len(x) // BATCH) / (time.perf_counter() - begin)


# -- ours ----------------------------------------------------------------------------------------------------------


class Task(ClassificationTask):
    """The same model as a task."""

    def build_model(self) -> keras.Model:
        return build_model()

    def build_inputs(self, params: Any, input_context: Any = None) -> Any:
        return data()


class Timed(Trainer):
    """A trainer that waits for the device at the first and the last step that count, and records their times."""

    marks: dict[int, float] = {}

    def train(self, num_steps: int, **call: Any) -> Any:
        logs = super().train(num_steps, **call)
        if self.global_step in (WARM, STEPS):
            len(logs)
            self.marks[self.global_step] = time.perf_counter()
        return logs


def ours() -> float:
    params = ExperimentConfig()
    params.override({"task": {"train_data": {"global_batch_size": BATCH, "is_training": True}}})
    params.override({"trainer": {"train_steps": STEPS, "steps_per_loop": BLOCK, "checkpoint_interval": 0}})
    task = Task()
    trainer = create_trainer(params, task, train=True, evaluate=False, trainer_cls=Timed)
    trainer.engine.call_length.add(BLOCK)  # as in a longer run: for so few steps compiling calls may not be worth it
    with tempfile.TemporaryDirectory() as directory:
        run_experiment(task, params, directory, "train", trainer=trainer, export=False)
    return (STEPS - WARM) / (Timed.marks[STEPS] - Timed.marks[WARM])


# -- by hand -------------------------------------------------------------------------------------------------------


def blocks() -> Any:
    x, y = data()
    generator = np.random.default_rng(0)
    while True:
        order = generator.permutation(len(x))[: len(x) // (BATCH * BLOCK) * BATCH * BLOCK]
        for rows in order.reshape(-1, BLOCK, BATCH):
            yield x[rows], y[rows]


def hand() -> float:
    step = {"jax": _hand_jax, "tensorflow": _hand_tensorflow, "torch": _hand_torch}[keras.backend.backend()]()
    source, done = blocks(), 0
    for _ in range(WARM // BLOCK):
        step(*next(source))
    begin = time.perf_counter()
    while done < STEPS - WARM:
        step(*next(source))  # returns the means, on the host, as a loop that logs would
        done += BLOCK
    return done / (time.perf_counter() - begin)


def _hand_jax() -> Any:
    import jax

    model, optimizer, loss = build_model(), keras.optimizers.Adam(1e-3), LOSS()
    optimizer.build(model.trainable_variables)

    def loss_fn(trainable: Any, rest: Any, x: Any, y: Any) -> Any:
        logits, rest = model.stateless_call(trainable, rest, x, training=True)
        return loss(y, logits), (logits, rest)

    def one(state: Any, batch: Any) -> Any:
        trainable, rest, slots = state
        (value, (logits, rest)), grads = jax.value_and_grad(loss_fn, has_aux=True)(trainable, rest, *batch)
        trainable, slots = optimizer.stateless_apply(slots, grads, trainable)
        accuracy = (logits.argmax(-1) == batch[1]).mean()
        return (trainable, rest, slots), (value, accuracy)

    many = jax.jit(lambda state, *block: jax.lax.scan(one, state, block), donate_argnums=0)
    held = [model.trainable_variables, model.non_trainable_variables, optimizer.variables]
    state = tuple([jax.numpy.array(v.value, copy=True) for v in group] for group in held)

    def step(x: np.ndarray, y: np.ndarray) -> list[float]:
        nonlocal state
        state, outputs = many(state, x, y)
        return [float(np.mean(values)) for values in outputs]

    return step


def _hand_tensorflow() -> Any:
    import tensorflow as tf

    model, optimizer, loss = build_model(), keras.optimizers.Adam(1e-3), LOSS()
    optimizer.build(model.trainable_variables)
    mean, accuracy = keras.metrics.Mean(), keras.metrics.SparseCategoricalAccuracy()

    @tf.function
    def many(xs: Any, ys: Any) -> Any:
        for index in tf.range(BLOCK):
            x, y = xs[index], ys[index]
            with tf.GradientTape() as tape:
                logits = model(x, training=True)
                value = loss(y, logits)
            optimizer.apply(tape.gradient(value, model.trainable_variables), model.trainable_variables)
            mean.update_state(value)
            accuracy.update_state(y, logits)
        return mean.result(), accuracy.result()

    def step(x: np.ndarray, y: np.ndarray) -> list[float]:
        mean.reset_state()
        accuracy.reset_state()
        return [float(value) for value in many(tf.constant(x), tf.constant(y))]

    return step


def _hand_torch() -> Any:
    import torch

    model, optimizer, loss = build_model(), keras.optimizers.Adam(1e-3), LOSS()
    optimizer.build(model.trainable_variables)
    mean, accuracy = keras.metrics.Mean(), keras.metrics.SparseCategoricalAccuracy()

    def one(x: Any, y: Any) -> None:
        logits = model(x, training=True)
        value = loss(y, logits)
        gradients = torch.autograd.grad(value, [v.value for v in model.trainable_variables])
        with torch.no_grad():
            optimizer.apply(gradients, model.trainable_variables)
            mean.update_state(value)
            accuracy.update_state(y, logits)

    def step(x: np.ndarray, y: np.ndarray) -> list[float]:
        mean.reset_state()
        accuracy.reset_state()
        for batch in zip(torch.tensor(x), torch.tensor(y), strict=True):
            one(*batch)
        return [float(value) for value in (mean.result(), accuracy.result())]

    return step


def main(rounds: int) -> None:
    backend.prepare(0)
    contenders = {"fit": fit, "ours": ours, "hand": hand}
    rates: dict[str, list[float]] = {name: [] for name in contenders}
    for _ in range(rounds):
        for name, run in contenders.items():
            rates[name].append(run())
            keras.utils.clear_session()
    print(json.dumps(rates))


if __name__ == "__main__":
    main(int(sys.argv[2]) if len(sys.argv) > 2 else 5)
