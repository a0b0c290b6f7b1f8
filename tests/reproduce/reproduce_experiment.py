"""An experiment whose data is in a file and whose layer draws random numbers: what a reproduction has to get right."""

from typing import Any

import keras
import numpy as np
from reproduce_rate import RATE

import everstep


@everstep.register_task(everstep.TaskConfig)
class FileTask(everstep.Task):
    """A straight line through points in `points.npz`."""

    def build_model(self) -> keras.Model:
        """Returns two layers with dropout between them."""
        dense = keras.layers.Dense
        return keras.Sequential([keras.Input((2,)), dense(4), keras.layers.Dropout(RATE), dense(1)], name="line")

    def build_inputs(self, params: Any, input_context: Any = None) -> Any:
        """Returns the points."""
        with np.load("points.npz") as points:
            return points["x"], points["y"]

    def build_losses(self, labels: Any, model_outputs: Any, aux_losses: Any = None) -> Any:
        """Returns the squared error."""
        return keras.ops.mean(keras.ops.square(labels - model_outputs))


@everstep.register_experiment("reproduce/file")
def file() -> everstep.ExperimentConfig:
    """Eight steps, saved and evaluated every four."""
    trainer = {"train_steps": 8, "steps_per_loop": 4, "validation_interval": 4, "checkpoint_interval": 4}
    return everstep.ExperimentConfig(task=everstep.TaskConfig(), trainer=everstep.TrainerConfig(trainer))
