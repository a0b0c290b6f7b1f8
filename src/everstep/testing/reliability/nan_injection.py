"""NaN injected at many places: in the loss, in a gradient, in an update that overflows after a finite loss.

Each place is a run of its own in which one sample spoils its batch. The bar: no checkpoint ever holds a value that is
not finite, and a run that may roll back finishes, without that one batch.
"""

import dataclasses
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import keras
import numpy as np

import everstep as es
from everstep.checkpoint import OrbaxCheckpointer
from everstep.errors import TrainingError

KINDS = ("loss", "gradient", "update")
SAMPLES, BATCH = 400, 10


class Spoiled(es.Task):
    """Learns a line; one sample, which has a mark in its last column, does harm."""

    def __init__(self, params: Any, kind: str, sample: int) -> None:
        super().__init__(params)
        self.kind, self.sample = kind, sample

    def build_model(self) -> keras.Model:
        return keras.Sequential([keras.Input((3,)), keras.layers.Dense(4, "tanh"), keras.layers.Dense(1)])

    def build_inputs(self, params: Any, input_context: Any = None) -> Any:
        x = np.random.default_rng(0).normal(size=(SAMPLES, 3)).astype("float32")
        marks = (np.arange(SAMPLES) == self.sample) & bool(params.is_training)
        return np.column_stack([x, marks]).astype("float32"), x.sum(axis=1, keepdims=True)

    def train_step(self, inputs: Any, model: Any, optimizer: Any, metrics: Any) -> dict[str, Any]:
        rows, y = inputs
        x, spoiled = rows[:, :3], keras.ops.max(rows[:, 3]) > 0

        def loss_fn() -> tuple[Any, Any]:
            y_pred = model(x, training=True)
            loss = keras.ops.mean(keras.ops.square(y - y_pred))
            if self.kind == "loss":
                loss = loss * keras.ops.where(spoiled, float("nan"), 1.0)
            if self.kind == "gradient":  # finite, but with an infinite slope
                loss = loss + keras.ops.sqrt(keras.ops.sum(y_pred) * 0.0 + keras.ops.where(spoiled, 0.0, 1.0))
            return loss, y_pred

        (loss, _), grads = es.value_and_grad(loss_fn, model.trainable_variables, optimizer=optimizer)
        if self.kind == "update":
            factor = keras.ops.where(spoiled, 1e38, 1.0)
            grads = [g * factor * factor for g in grads]
        optimizer.apply(grads, model.trainable_variables)
        return {self.loss: loss}

    def validation_step(self, inputs: Any, model: Any, metrics: Any = None) -> dict[str, Any]:
        rows, y = inputs
        return {self.loss: keras.ops.mean(keras.ops.square(y - model(rows[:, :3])))}


@dataclasses.dataclass(frozen=True)
class Outcome:
    """How a run with one bad sample ended.

    Attributes:
      error: What it ended with; empty if it finished.
      checkpoints: The steps on disk.
      bad: Those of them that hold something that is not finite.
      skipped: The skipped batches.
    """

    error: str
    checkpoints: list[int]
    bad: list[int]
    skipped: list[Any]


def run(directory: Path, kind: str, sample: int, trials: int, interval: int = 7) -> Outcome:
    """Trains through one epoch with a bad sample in it."""
    steps = SAMPLES // BATCH
    trainer: dict[str, Any] = {"train_steps": steps, "steps_per_loop": 5, "max_to_keep": 100}
    trainer |= {"checkpoint_interval": interval, "recovery_max_trials": trials}
    trainer |= {"optimizer_config": {"optimizer": {"type": "sgd"}}}
    data = {"global_batch_size": BATCH}
    params = es.ExperimentConfig({"trainer": trainer, "task": {"train_data": data, "validation_data": data}})
    error = ""
    try:
        es.run_experiment(Spoiled(params.task, kind, sample), params, directory, "train", export=False, verbose=False)
    except TrainingError as failure:
        error = str(failure)
    record = json.loads((directory / "run.json").read_text())
    return Outcome(error, *_inspect(directory / "checkpoints", record["id"]))


def _inspect(directory: Path, run_id: str) -> tuple[list[int], list[int], list[Any]]:
    checkpointer = OrbaxCheckpointer(directory, run=run_id)
    bad, skipped = [], []
    for step in checkpointer.steps():
        state, meta = checkpointer.restore(step)
        arrays = [np.asarray(array) for array in state.values()]
        if not all(np.isfinite(array).all() for array in arrays if array.dtype.kind == "f"):
            bad.append(step)
        skipped = meta["recovery"]["skipped"]
    steps = checkpointer.steps()
    checkpointer.close()
    return steps, bad, skipped


def places(count: int) -> Iterator[tuple[str, int]]:
    """Yields kinds of harm and samples that do it."""
    choice = np.random.default_rng(1)
    for number in range(count):
        yield KINDS[number % len(KINDS)], int(choice.integers(SAMPLES))
