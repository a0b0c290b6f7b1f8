"""Two devices against one under JAX: run in a process of its own, for devices are laid out before JAX starts."""

import os
import sys
import tempfile

os.environ["KERAS_BACKEND"] = "jax"
os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=2"

import json
import pathlib

import keras
import numpy as np

import everstep

X = np.random.default_rng(0).normal(size=(330, 8)).astype("float32")
Y = 2 * X[:, :1]


class Regression(everstep.Task):
    def build_model(self):
        layers = [keras.layers.Dense(4, use_bias=False, kernel_regularizer="l2"), keras.layers.BatchNormalization()]
        return keras.Sequential([keras.Input((8,)), *layers, keras.layers.Dropout(0.2), keras.layers.Dense(1)])

    def build_inputs(self, params, input_context=None):
        return X, Y

    def build_losses(self, labels, model_outputs, aux_losses=None):
        return keras.losses.MeanSquaredError()(labels, model_outputs) + sum(aux_losses)

    def build_metrics(self, training=True):
        return [keras.metrics.MeanAbsoluteError(name="mae")]


def run(directory, strategy, steps=50):
    config = everstep.ExperimentConfig()
    # 16 divides evenly; the evaluation's 33 samples a batch do not
    data = {"train_data": {"global_batch_size": 16}, "validation_data": {"global_batch_size": 33}}
    config.override({"task": data, "runtime": {"distribution_strategy": strategy}})
    config.override({"trainer": {"train_steps": steps, "steps_per_loop": 25, "validation_interval": 50}})
    model, logs = everstep.run_experiment(
        None, Regression(), "train_and_eval", config, directory, verbose=False, export=False
    )
    record = json.loads(pathlib.Path(directory, "run.json").read_text())
    return logs, model.get_weights(), record


def main():
    with tempfile.TemporaryDirectory() as folder:
        expected, weights, record = run(f"{folder}/one", "one_device")
        logs, shared, mirrored = run(f"{folder}/two", "mirrored")
        assert (record["environment"]["engine"]["replicas"], mirrored["environment"]["engine"]["replicas"]) == (1, 2)
        for name in ("validation_loss", "mae"):
            np.testing.assert_allclose(logs[name], expected[name], rtol=1e-4, err_msg=name)
        for one, two in zip(weights, shared, strict=True):
            np.testing.assert_allclose(two, one, rtol=1e-3, atol=1e-5)
        run(f"{folder}/resumed", "mirrored", steps=25)
        resumed = run(f"{folder}/resumed", "mirrored")[2]
        assert resumed["digest"] == mirrored["digest"], "a resumed run on two devices has other bits"
    print("two devices train as one does, and resume")


if __name__ == "__main__":
    sys.exit(main())
