"""Two logical devices against one: run in a process of its own, for devices are laid out before TensorFlow starts."""

import os
import tempfile

os.environ["KERAS_BACKEND"] = "tensorflow"

import keras
import numpy as np
import tensorflow as tf

import everstep

WIDTH, SAMPLES = 8, 330
RNG = np.random.default_rng(0)
X = RNG.normal(size=(SAMPLES, WIDTH)).astype("float32")
Y = 2 * X[:, :1]


class Regression(everstep.Task):
    """The loss as a Keras loss object, which divides by the replicas, or as a plain function, which does not."""

    def __init__(self, form):
        super().__init__()
        self.form = form

    def build_model(self):
        keras.utils.set_random_seed(1)
        hidden = keras.layers.Dense(4, activation="relu", kernel_regularizer="l2")
        return keras.Sequential([keras.Input((WIDTH,)), hidden, keras.layers.Dense(1)])

    def build_inputs(self, params, input_context=None):
        return X, Y

    def build_losses(self, labels, model_outputs, aux_losses=None):
        if self.form == "object":
            loss = keras.losses.MeanSquaredError()(labels, model_outputs)
        else:
            loss = keras.ops.mean(keras.ops.square(labels - model_outputs))
        return loss + sum(aux_losses)

    def build_metrics(self, training=True):
        return [keras.metrics.MeanAbsoluteError(name="mae")]

    def aggregate_logs(self, state, step_outputs):
        return [*(state or []), len(step_outputs["loss"])]

    def reduce_aggregated_logs(self, aggregated_logs, global_step=None):
        return {"replicas": aggregated_logs[0]}


def run(strategy, form):
    config = everstep.ExperimentConfig()
    # 16 divides evenly; the evaluation's 33 samples a batch do not
    data = {"train_data": {"global_batch_size": 16}, "validation_data": {"global_batch_size": 33}}
    config.override({"task": data, "trainer": {"train_steps": 50, "steps_per_loop": 25, "validation_interval": 50}})
    with tempfile.TemporaryDirectory() as directory:
        task, mode = Regression(form), "train_and_eval"
        model, logs = everstep.run_experiment(strategy, task, mode, config, directory, verbose=False, export=False)
    return logs, model.get_weights()


def main():
    cpu = tf.config.list_physical_devices("CPU")[0]
    tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)
    expected, weights = run(None, "object")
    for form in ("object", "function"):
        logs, replicated = run(tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"]), form)
        assert (expected["replicas"], logs["replicas"]) == (1, 2)
        for name in ("validation_loss", "mae"):
            np.testing.assert_allclose(logs[name], expected[name], rtol=1e-5)
        for a, b in zip(weights, replicated, strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)
        print(f"{form}: two replicas train as one does")


if __name__ == "__main__":
    main()
