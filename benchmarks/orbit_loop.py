"""Model Garden's loop, Orbit, on TensorFlow and Keras 2, in an environment of its own (`environments.py`).

A `StandardTrainer` runs 100 steps of the training function in one `tf.function`, as Model Garden's trainer does; the
controller writes summaries every 100 steps.
"""

import tempfile
import time

from benchmarks.contenders import serve

BLOCK = 100


def train(batch: int, hidden: int, steps: int) -> float:
    """Trains a dense network 784-hidden-10; returns steps per second without compilation."""
    import numpy as np
    import orbit
    import tensorflow as tf
    import tf_keras as keras

    random = np.random.default_rng(0)
    x = random.random((batch * BLOCK, 784), np.float32)
    y = random.integers(0, 10, batch * BLOCK, np.int32)

    class DenseTrainer(orbit.StandardTrainer):
        """The network, its optimizer and its metrics."""

        def __init__(self) -> None:
            self.model = keras.Sequential(
                [keras.Input((784,)), keras.layers.Dense(hidden, activation="relu"), keras.layers.Dense(10)]
            )
            self.optimizer = keras.optimizers.Adam(1e-3)
            self.loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
            self.mean, self.accuracy = keras.metrics.Mean(), keras.metrics.SparseCategoricalAccuracy()
            data = tf.data.Dataset.from_tensor_slices((x, y)).shuffle(len(x)).repeat()
            data = data.batch(batch, drop_remainder=True).prefetch(tf.data.AUTOTUNE)
            super().__init__(data, orbit.StandardTrainerOptions(use_tf_while_loop=True, use_tf_function=True))

        def train_loop_begin(self) -> None:
            self.mean.reset_states()
            self.accuracy.reset_states()

        def train_step(self, iterator: object) -> None:
            features, labels = next(iterator)  # type: ignore[call-overload]
            with tf.GradientTape() as tape:
                logits = self.model(features, training=True)
                value = self.loss(labels, logits)
            variables = self.model.trainable_variables
            self.optimizer.apply_gradients(zip(tape.gradient(value, variables), variables, strict=True))
            self.mean.update_state(value)
            self.accuracy.update_state(labels, logits)

        def train_loop_end(self) -> dict:
            return {"loss": self.mean.result(), "accuracy": self.accuracy.result()}

    trainer = DenseTrainer()
    with tempfile.TemporaryDirectory() as folder:
        controller = orbit.Controller(
            trainer=trainer,
            global_step=trainer.optimizer.iterations,
            steps_per_loop=BLOCK,
            summary_dir=folder,
            summary_interval=BLOCK,
        )
        warm, total = 6 * BLOCK, max(steps // BLOCK, 1) * BLOCK
        controller.train(warm, checkpoint_at_completion=False)
        begin = time.perf_counter()
        controller.train(warm + total, checkpoint_at_completion=False)
        return total / (time.perf_counter() - begin)


if __name__ == "__main__":
    serve({"train": train})
