"""An experiment that takes its time, so that others can do something to it, until a file `hurry` is where it runs.

Copied beside a run, `--import=slow_experiment` finds it.
"""

import dataclasses
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import keras
import numpy as np

import everstep

STEPS = 200


@dataclasses.dataclass
class SlowConfig(everstep.TaskConfig):
    """A straight line."""


@everstep.register_task(SlowConfig)
class SlowTask(everstep.Task):
    def build_model(self) -> keras.Model:
        return keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])

    def build_inputs(self, params: Any, input_context: Any = None) -> Any:
        return batches

    def build_losses(self, labels: Any, model_outputs: Any, aux_losses: Any = None) -> Any:
        return keras.ops.mean(keras.ops.square(labels - model_outputs))


def batches() -> Iterator[tuple[np.ndarray, np.ndarray]]:
    for number in range(8):
        x = np.random.default_rng(number).normal(size=(4, 2)).astype("float32")
        if not Path("hurry").exists():
            time.sleep(0.05)
        yield x, x.sum(axis=1, keepdims=True)


@everstep.register_experiment("slow/line")
def line() -> everstep.ExperimentConfig:
    """Ten seconds of training, or next to none."""
    trainer = {"train_steps": STEPS, "steps_per_loop": 5, "checkpoint_interval": 10}
    return everstep.ExperimentConfig(task=SlowConfig(), trainer=everstep.TrainerConfig(trainer))
