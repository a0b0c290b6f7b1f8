"""An experiment whose batches take much memory: some hundred kilobytes for each sample."""

import dataclasses
from typing import Any

import keras
import numpy as np

import everstep


@dataclasses.dataclass
class WideConfig(everstep.TaskConfig):
    """What is in the way of a larger batch."""

    trouble: str = ""
    """`fixed` for batches that the task cuts itself, `bug` for an error in the loss."""


@everstep.register_task(WideConfig)
class WideTask(everstep.Task):
    """Two wide layers."""

    def build_model(self) -> keras.Model:
        """Returns them."""
        wide = [keras.layers.Dense(16384, activation="relu"), keras.layers.Reshape((128, 128))]
        return keras.Sequential(
            [keras.Input((8,)), *wide, keras.layers.Conv1D(512, 1), keras.layers.Flatten(), keras.layers.Dense(1)]
        )

    def build_inputs(self, params: Any, input_context: Any = None) -> Any:
        """Returns many small samples."""
        x = np.random.default_rng(0).normal(size=(8192, 8)).astype("float32")
        if self.task_config.trouble == "fixed":
            return lambda: iter([(x[:16], x[:16, :1])] * 50)
        return x, x[:, :1]

    def build_losses(self, labels: Any, model_outputs: Any, aux_losses: Any = None) -> Any:
        """Returns the squared error."""
        if self.task_config.trouble == "bug":
            raise KeyError("a bug")
        return keras.ops.mean(keras.ops.square(labels - model_outputs))


@everstep.register_experiment("wide")
def wide() -> everstep.ExperimentConfig:
    """Wide layers."""
    return everstep.ExperimentConfig(
        task=WideConfig(validation_data=everstep.DataConfig(limit_batches=1)),
        trainer=everstep.TrainerConfig(train_steps=8),
    )
