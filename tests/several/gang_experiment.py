"""A small experiment for several processes: a dense network with dropout on data made from its seed.

`everstep train gang/small --import gang_experiment` finds it where it is on the path.
"""

import dataclasses
import os
import time
from typing import Any

import numpy as np

import everstep


@dataclasses.dataclass
class GangConfig(everstep.TaskConfig):
    """A classifier."""

    units: int = 32
    """Width of the hidden layer."""
    samples: int = 640
    """How many training samples there are."""
    frozen: bool = False
    """Whether the hidden layer is frozen."""


@everstep.register_task(GangConfig)
class GangTask(everstep.Task):
    def build_model(self) -> Any:
        import keras

        layers = [keras.layers.Dense(self.task_config.units, "relu"), keras.layers.Dropout(0.2, seed=3)]
        layers[0].trainable = not self.task_config.frozen
        return keras.Sequential([keras.Input((16,)), *layers, keras.layers.Dense(4)])

    def build_inputs(self, params: Any, input_context: Any = None) -> Any:
        count = self.task_config.samples if params.is_training else 101
        other = os.environ.get("GANG_OTHER_DATA") == os.environ.get("EVERSTEP_PROCESS_ID", "alone")
        random = np.random.default_rng(int(params.is_training) + 10 * int(other))
        x = random.normal(size=(count, 16)).astype("float32")
        time.sleep(float(os.environ.get("GANG_SLOW_START", "0")))
        return x, (x[:, :4].argmax(axis=1)).astype("int32")

    def build_losses(self, labels: Any, model_outputs: Any, aux_losses: Any = None) -> Any:
        import keras

        losses = keras.losses.sparse_categorical_crossentropy(labels, model_outputs, from_logits=True)
        return keras.ops.mean(losses)


@everstep.register_experiment("gang/small")
def small() -> everstep.ExperimentConfig:
    """A few hundred steps."""
    return everstep.ExperimentConfig(
        task=GangConfig(
            train_data=everstep.DataConfig(global_batch_size=32),
            validation_data=everstep.DataConfig(global_batch_size=40),
        ),
        trainer=everstep.TrainerConfig(
            train_steps=200,
            steps_per_loop=10,
            checkpoint_interval=30,
            validation_interval=100,
            optimizer_config=everstep.OptimizationConfig({"optimizer": {"type": "adam"}, "learning_rate": 0.01}),
        ),
    )
