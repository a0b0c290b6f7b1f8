"""Batches that are dicts: a step finds the right array under each key, in any order of the keys."""

import keras
import numpy as np
import pytest

import everstep

pytestmark = pytest.mark.backend


class Named(everstep.Task):
    """Reports the means of two inputs of one shape and type."""

    def build_model(self):
        return keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])

    def build_inputs(self, params, input_context=None):
        return {"second": np.full((8, 3), 2, "float32"), "first": np.full((8, 3), 1, "float32")}

    def train_step(self, inputs, model, optimizer, metrics):
        return {self.loss: keras.ops.mean(model(inputs["first"])), **self._means(inputs)}

    def validation_step(self, inputs, model, metrics):
        return self._means(inputs)

    def _means(self, inputs):
        return {f"mean_{name}": keras.ops.mean(value) for name, value in inputs.items()}


def test_keys_out_of_order(tmp_path):
    params = everstep.ExperimentConfig()
    params.override({"trainer": {"train_steps": 3}, "task": {"train_data": {"global_batch_size": 4}}})
    seen = []
    _, logs = everstep.run_experiment(
        Named(), params, tmp_path / "run",
        train_actions=[seen.append], export=False, verbose=False,
    )  # fmt: skip
    for each in (seen[0], logs):
        assert (each["mean_first"], each["mean_second"]) == (1, 2)
