"""The tasks of `multitask/digits`, and the model that they share."""

from typing import Any

import keras
import numpy as np
from keras import layers

from everstep import ClassificationTask
from everstep.recipes.mnist_data import load_mnist
from everstep.task.multitask import MultiTask

CLASSES = {"digit": 10, "parity": 2}


class DigitTask(ClassificationTask):
    """Answers one question about a digit; the model comes from `DigitsTask`."""

    def __init__(self, params: Any, **kwargs: Any) -> None:
        super().__init__(params, **kwargs)
        self.label_classes = CLASSES[params.target]

    def build_inputs(self, params: Any, input_context: Any = None) -> Any:
        """Returns the shipped images of the split that `params` are for, and the answers."""
        images, digits = load_mnist("train" if params.is_training else "test")
        count = self.task_config.num_samples if params.is_training else None
        answers = digits[:count].astype("int32") % CLASSES[self.task_config.target]
        return (images[:count] / np.float32(255)).astype("float32"), answers


class DigitsTask(MultiTask):
    """Both questions at once."""

    def build_model(self) -> keras.Model:
        """Returns a hidden layer with an output for each task."""
        config = self.task_config.model
        inputs = keras.Input((28, 28))
        hidden = layers.Dense(config.units, activation="relu")(layers.Flatten()(inputs))
        hidden = layers.Dropout(config.dropout)(hidden)
        heads = {
            routine.task_name: layers.Dense(CLASSES[routine.task_config.target], name=routine.task_name)(hidden)
            for routine in self.task_config.task_routines
        }
        return keras.Model(inputs, heads, name="digits")
