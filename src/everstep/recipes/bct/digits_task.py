"""The task of the digits experiments."""

from typing import Any

import keras
from keras import layers

from everstep.errors import UsageError
from everstep.recipes.bct.digits_data import load_digits
from everstep.recipes.bct.task import BCTTask


class DigitsTask(BCTTask):
    """Classifies 8×8 images of digits."""

    def build_embedding(self) -> keras.Model:
        """Returns a network with one hidden layer."""
        model = self.task_config.model
        hidden = layers.Dense(model.units, activation="relu")
        return keras.Sequential([keras.Input((64,)), hidden, layers.Dense(model.embedding_size)], name="digits")

    def build_inputs(self, params: Any, input_context: Any = None) -> Any:
        """Returns images and labels of the split that `params` are for."""
        x, y = load_digits(params.is_training, self.task_config.classes, self.task_config.held_out)
        count = self.task_config.num_samples if params.is_training else None
        if count is not None and count > len(x):
            reason = f"but there are {len(x)} images of these classes"
            raise UsageError(reason, key="task.num_samples", received=count)
        return x[:count], y[:count]
