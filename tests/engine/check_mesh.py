"""Checks two JAX devices in a subprocess, since the number of devices is set before JAX starts.

`check_mesh.py warning` or `check_mesh.py training` prints `ok`, or fails.
"""

import os
import sys
import tempfile

os.environ["KERAS_BACKEND"] = "jax"
os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=2"

import json
import logging
import pathlib

import jax
import keras
import numpy as np

import everstep
from everstep.engine.mesh import DeviceMesh

X = np.random.default_rng(0).normal(size=(329, 8)).astype("float32")
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


def run(directory, strategy, steps=50, cache="auto"):
    config = everstep.ExperimentConfig()
    # two devices share 16 and 82 samples evenly, but not the single last sample of an evaluation
    sizes = {"train_data": 16, "validation_data": 82}
    data = {section: {"global_batch_size": size, "cache": cache} for section, size in sizes.items()}
    config.override({"task": data, "runtime": {"distribution_strategy": strategy}})
    config.override({"trainer": {"train_steps": steps, "steps_per_loop": 25, "validation_interval": 50}})
    model, logs = everstep.run_experiment(Regression(), config, directory, verbose=False, export=False)
    record = json.loads(pathlib.Path(directory, "run.json").read_text())
    return logs, model.get_weights(), record


def warning():
    """An uneven batch size logs one warning, the rest of an epoch none."""
    messages = []
    handler = logging.Handler()
    handler.emit = lambda record: messages.append(record.getMessage())
    logging.getLogger("everstep.engine.mesh").addHandler(handler)
    devices = DeviceMesh(jax.devices())
    for count, samples in [(3, 16), (1, 5), (2, 16), (1, 5), (1, 16)]:
        devices.share((np.zeros((count, samples, 8)), np.zeros((count, samples))))
    assert not messages, messages
    for _ in range(3):
        devices.share(np.zeros((1, 5, 8)))
    assert len(messages) == 1, messages
    assert "batches of 5 samples cannot be shared evenly by 2 devices" in messages[0]
    assert "task.train_data.global_batch_size" in messages[0]


def training():
    """Two devices train as one does, and resume."""
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
        _, _, on_device = run(f"{folder}/device", "mirrored", cache="device")
        assert set(on_device["environment"]["data_on_device"]) == {"train", "validation"}
        assert on_device["digest"] == mirrored["digest"], "data on two devices gives other bits"
        assert on_device["metrics"]["validation"]["validation_loss"] == logs["validation_loss"]


if __name__ == "__main__":
    {"warning": warning, "training": training}[sys.argv[1]]()
    print(f"ok {sys.argv[1]}")
