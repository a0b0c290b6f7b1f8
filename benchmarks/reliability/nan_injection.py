"""NaN injected at many places: in the loss, in a gradient, in an update that overflows after a finite loss.

    python -m benchmarks.reliability.nan_injection [--small]

Each place is a run of its own in which one sample spoils its batch. The bar: no checkpoint ever holds a value that is
not finite, and a run that may roll back finishes, without that one batch.
"""

import argparse
import dataclasses
import json
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import keras
import numpy as np

import everstep as es
from everstep.checkpoint.orbax import OrbaxCheckpointer
from everstep.engine import non_finite
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
    trainer = {"train_steps": steps, "steps_per_loop": 5, "checkpoint_interval": interval, "max_to_keep": 100}
    trainer |= {"recovery_max_trials": trials, "optimizer_config": {"optimizer": {"type": "sgd"}}}
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
        bad += [step] if non_finite(state) else []
        skipped = meta["recovery"]["skipped"]
    steps = checkpointer.steps()
    checkpointer.close()
    return steps, bad, skipped


def places(count: int) -> Iterator[tuple[str, int]]:
    """Yields kinds of harm and samples that do it."""
    choice = np.random.default_rng(1)
    for number in range(count):
        yield KINDS[number % len(KINDS)], int(choice.integers(SAMPLES))


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--small", action="store_true", help="3 places instead of 20")
    count = 3 if parser.parse_args(arguments).small else 20
    bad = failed = unskipped = 0
    with tempfile.TemporaryDirectory() as folder:
        for number, (kind, sample) in enumerate(places(count)):
            back = run(Path(folder, f"{number}-back"), kind, sample, trials=3)
            stop = run(Path(folder, f"{number}-stop"), kind, sample, trials=0)
            bad += len(back.bad) + len(stop.bad)
            failed += bool(back.error) or not stop.error
            unskipped += len(back.skipped) != 1
            print(f"{kind:8} sample {sample:3}: back {back.error or 'finished'}; stop: {stop.error[:60]}", flush=True)
    print(f"{count} places: {bad} checkpoints that are not finite, {failed} runs with an unexpected end, "
          f"{unskipped} that did not skip exactly one batch")  # fmt: skip
    return 1 if bad or failed or unskipped else 0


if __name__ == "__main__":
    sys.exit(main())
