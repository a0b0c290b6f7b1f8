"""Keras's `fit`, Everstep and hand-written loops on one backend: `python -m benchmarks.keras_loops jax`.

Every function trains a new network from the beginning, and returns steps per second without compilation.
"""

import functools
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from typing import Any

from everstep.engine import backend

if __name__ == "__main__":
    backend.select(sys.argv[1])

import keras
import numpy as np

import everstep
from benchmarks import networks
from benchmarks.contenders import serve
from everstep.experiment import create_trainer, run_experiment
from everstep.experiment_config import ExperimentConfig
from everstep.loop.trainer import Trainer
from everstep.task.classification import ClassificationTask

BLOCK = 100
POOL = 100  # batches of data, read again and again


def _compiled(network: str, per_execution: int) -> keras.Model:
    model = networks.build(network)
    model.compile(keras.optimizers.Adam(1e-3), networks.loss(), metrics=["accuracy"], steps_per_execution=per_execution)
    return model


@functools.cache
def _fit(network: str, per_execution: int, ours: bool) -> Callable[[int], None]:
    """Returns a function that trains one epoch of so many steps; everything is compiled.

    It is kept for all rounds: at many steps per execution, Keras compiles for long on JAX.
    """
    model, batch = _compiled(network, 1 if ours else per_execution), networks.NETWORKS[network].batch

    def train(steps: int) -> None:
        x, y = networks.data(network, steps)
        if ours:
            everstep.fit(model, x, y, batch_size=batch, verbose=0)
        else:
            model.fit(x, y, batch_size=batch, verbose=0)

    train(2 * BLOCK)
    return train


def fit(network: str, steps: int, per_execution: int = 1, ours: bool = False) -> float:
    """Trains a compiled model with `fit`, Keras's or ours, for one epoch."""
    train, steps = _fit(network, per_execution, ours), max(steps // BLOCK, 1) * BLOCK
    networks.data(network, steps)
    begin = time.perf_counter()
    train(steps)
    return _rate(steps, begin)


class NetworkTask(ClassificationTask):
    """A network as a task."""

    network = ""

    def build_model(self) -> keras.Model:
        return networks.build(self.network)

    def build_inputs(self, params: Any, input_context: Any = None) -> Any:
        return networks.data(self.network, POOL)


class TimedTrainer(Trainer):
    """A trainer that waits for the device at the first and the last step that count, and records their times."""

    counted: tuple[int, int] = (0, 0)
    marks: dict[int, float] = {}

    def train(self, num_steps: int, **call: Any) -> Any:
        logs = super().train(num_steps, **call)
        if self.global_step in self.counted:
            len(logs)
            self.marks[self.global_step] = time.perf_counter()
        return logs


def experiment(network: str, steps: int, everything: bool = True) -> float:
    """Trains by `run_experiment`, with console, TensorBoard, `history.csv` and windows of 100 steps.

    With `everything`, also checkpoints, metrics as JSON lines, and figures of the machine.
    """
    warm = 6 * BLOCK
    total = warm + max(steps // BLOCK, 1) * BLOCK
    task = _task(network)
    TimedTrainer.counted = warm, total
    params = _params(network, total)
    if everything:
        params.override({"trainer": {"checkpoint_interval": max(warm, (total - warm) // 2)}})
        params.override({"trainer": {"tracking": {"jsonl": True, "system_seconds": 5.0}}})
    trainer = create_trainer(params, task, train=True, evaluate=False, trainer_cls=TimedTrainer)
    with tempfile.TemporaryDirectory() as directory:
        run_experiment(task, params, directory, "train", trainer=trainer, export=False)
    return (total - warm) / (TimedTrainer.marks[total] - TimedTrainer.marks[warm])


def bare(network: str, steps: int) -> float:
    """Trains by the trainer alone: windows of 100 steps whose logs are read, and nothing else."""
    trainer = create_trainer(_params(network, 10**9), _task(network), train=True, evaluate=False)
    for _ in range(6):
        logs = trainer.train(BLOCK)
    len(logs)
    windows = max(steps // BLOCK, 1)
    begin = time.perf_counter()
    for _ in range(windows):
        logs = trainer.train(BLOCK)
    len(logs)
    found = _rate(windows * BLOCK, begin)
    trainer.close()
    return found


def _task(network: str) -> NetworkTask:
    task = NetworkTask()
    task.network = network
    return task


def _params(network: str, steps: int) -> ExperimentConfig:
    params = ExperimentConfig()
    batch = networks.NETWORKS[network].batch
    params.override({"task": {"train_data": {"global_batch_size": batch, "is_training": True}}})
    params.override({"trainer": {"train_steps": steps, "steps_per_loop": BLOCK, "checkpoint_interval": 0}})
    return params


# -- by hand -----------------------------------------------------------------------------------------------------------


def hand(network: str, steps: int) -> float:
    """Trains in a compiled loop of 100 steps as one would write it for this model alone; on PyTorch step by step."""
    makers = {"jax": _hand_jax, "tensorflow": _hand_tensorflow, "torch": _hand_torch}
    step, source = makers[keras.backend.backend()](network), _blocks(network)
    for _ in range(6):
        step(*next(source))
    windows = max(steps // BLOCK, 1)
    begin = time.perf_counter()
    for _ in range(windows):
        step(*next(source))  # returns the means, on the host, as a loop that logs would
    return _rate(windows * BLOCK, begin)


def _blocks(network: str) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    x, y = networks.data(network, POOL)
    batch, generator = networks.NETWORKS[network].batch, np.random.default_rng(0)
    while True:
        for rows in generator.permutation(len(x)).reshape(-1, BLOCK, batch):
            yield x[rows], y[rows]


def _built(network: str) -> tuple[Any, Any, Any]:
    model, optimizer = networks.build(network), keras.optimizers.Adam(1e-3)
    optimizer.build(model.trainable_variables)
    return model, optimizer, networks.loss()


Step = Callable[[np.ndarray, np.ndarray], list[float]]


def _hand_jax(network: str) -> Step:
    import jax

    model, optimizer, loss = _built(network)

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


def _hand_tensorflow(network: str) -> Step:
    import tensorflow as tf

    model, optimizer, loss = _built(network)
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


def _hand_torch(network: str) -> Step:
    import torch

    model, optimizer, loss = _built(network)
    mean, accuracy = keras.metrics.Mean(), keras.metrics.SparseCategoricalAccuracy()
    device = keras.src.backend.torch.core.get_device()

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
        for batch in zip(torch.tensor(x, device=device), torch.tensor(y, device=device), strict=True):
            one(*batch)
        return [float(value) for value in (mean.result(), accuracy.result())]

    return step


def _rate(steps: int, begin: float) -> float:
    return steps / (time.perf_counter() - begin)


if __name__ == "__main__":
    backend.prepare(0)
    serve({each.__name__: each for each in (fit, experiment, bare, hand)})
