"""The task of `regression/sine`."""

from typing import Any

import keras
import numpy as np
from keras import layers

from everstep.task import RegressionTask


class SineTask(RegressionTask):
    """Predicts sin(3 x) for x from -2 to 2."""

    def build_model(self) -> keras.Model:
        """Returns two hidden layers."""
        units = self.task_config.model.units
        hidden = [layers.Dense(units, activation="gelu") for _ in range(2)]
        return keras.Sequential([keras.Input((1,)), *hidden, layers.Dense(1)], name="curve")

    def build_inputs(self, params: Any, input_context: Any = None) -> Any:
        """Returns noisy points to learn from, or points on the curve."""
        draw = np.random.default_rng(0 if params.is_training else 1)
        x = draw.uniform(-2, 2, size=(4096 if params.is_training else 512, 1))
        noise = draw.normal(scale=self.task_config.noise, size=x.shape) if params.is_training else 0
        return x.astype("float32"), (np.sin(3 * x) + noise).astype("float32")
