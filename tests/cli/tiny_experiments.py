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


@dataclasses.dataclass
class BadConfig(everstep.TaskConfig):
    """Asks for something that cannot be done."""

    what: str = ""
    """The mistake."""


@everstep.register_task(BadConfig)
class BadTask(everstep.Task):
    """A classifier of four classes with one mistake."""

    def build_model(self) -> keras.Model:
        """Returns one dense layer."""
        return keras.Sequential([keras.Input((3,)), keras.layers.Dense(4)])

    def build_inputs(self, params: Any, input_context: Any = None) -> Any:
        """Returns 40 samples, or none."""
        count = 0 if self.task_config.what == "empty" else 40
        classes = 9 if self.task_config.what == "labels" else 4
        return np.ones((count, 3), "float32"), np.arange(count, dtype="int32") % classes

    def build_losses(self, labels: Any, model_outputs: Any, aux_losses: Any = None) -> Any:
        """Returns the cross-entropy, or leaves it to the base class, which has none."""
        if self.task_config.what == "no loss":
            return super().build_losses(labels, model_outputs, aux_losses)
        losses = keras.losses.sparse_categorical_crossentropy(labels, model_outputs, from_logits=True)
        if self.task_config.what == "unseeded":
            losses += keras.random.normal(losses.shape)
        if self.task_config.what == "variable":
            losses += keras.Variable(np.zeros((), "float32"), name="late")
        return keras.ops.mean(losses)

    def train_step(self, inputs: Any, model: Any, optimizer: Any, metrics: Any) -> Any:
        """Returns the loss, or forgets it."""
        logs = super().train_step(inputs, model, optimizer, metrics)
        return {"other": logs["loss"]} if self.task_config.what == "no loss key" else logs


@everstep.register_experiment("tiny/bad")
def bad() -> everstep.ExperimentConfig:
    """A mistake of your choice."""
    return everstep.ExperimentConfig(task=BadConfig(), trainer=everstep.TrainerConfig(train_steps=4))
