"""Experiments of a user's own, as `--import` finds them: a straight line learned from generated points.

Keras is imported in the first line, as users do; the backend must have been chosen by then.
"""

import dataclasses
from typing import Any

import keras
import numpy as np

import everstep
from everstep.errors import TrainingError


@dataclasses.dataclass
class LineConfig(everstep.TaskConfig):
    units: int = 1
    """Outputs of the model; other than 1 fails, after the run has started."""


@everstep.register_task(LineConfig)
class LineTask(everstep.Task):
    def build_model(self) -> keras.Model:
        return keras.Sequential([keras.Input((2,)), keras.layers.Dense(self.task_config.units)], name="line")

    def build_inputs(self, params: Any, input_context: Any = None) -> Any:
        x = np.random.default_rng(0).normal(size=(64, 2)).astype("float32")
        return x, x.sum(axis=1, keepdims=True)

    def build_losses(self, labels: Any, model_outputs: Any, aux_losses: Any = None) -> Any:
        if self.task_config.units != 1:
            raise TrainingError(f"cannot fit {self.task_config.units} outputs")
        return keras.ops.mean(keras.ops.square(labels - model_outputs))


@everstep.register_experiment("tiny/line")
def line() -> everstep.ExperimentConfig:
    """A straight line."""
    trainer = {"train_steps": 8, "steps_per_loop": 4, "validation_interval": 4, "checkpoint_interval": 4}
    return everstep.ExperimentConfig(task=LineConfig(), trainer=everstep.TrainerConfig(trainer))
