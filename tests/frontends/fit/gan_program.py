"""A small GAN in the manner of keras.io's: its own `train_step` and `compile`, two optimizers, no `loss` in the logs.

Run as a program it is killed after an epoch: `python gan_program.py <directory> <epoch>`.
"""

import hashlib
import os
import signal
import sys

import keras
import numpy as np
from keras import layers, ops

import everstep as es

BACKEND = keras.backend.backend()
X = np.random.default_rng(0).random((24, 4, 4, 1)).astype("float32")


class GAN(keras.Model):
    def __init__(self, noisy=False):
        super().__init__()
        self.discriminator = keras.Sequential(
            [keras.Input((4, 4, 1)), layers.Flatten(), layers.Dense(4, "tanh"), layers.Dropout(0.2), layers.Dense(1)]
        )
        self.generator = keras.Sequential(
            [keras.Input((3,)), layers.Dense(16, "sigmoid"), layers.Reshape((4, 4, 1))], name="generator"
        )
        self.seed_generator = keras.random.SeedGenerator(1337)
        self.noisy = noisy

    def compile(self, d_optimizer, g_optimizer, loss_fn):
        super().compile()
        self.d_optimizer, self.g_optimizer, self.loss_fn = d_optimizer, g_optimizer, loss_fn
        self.d_loss_metric = keras.metrics.Mean(name="d_loss")
        self.g_loss_metric = keras.metrics.Mean(name="g_loss")

    @property
    def metrics(self):
        return [self.d_loss_metric, self.g_loss_metric]

    def train_step(self, real):
        count = real.shape[0]
        fake = self.generator(self._latent(count), training=True)
        labels = ops.concatenate([ops.ones((count, 1)), ops.zeros((count, 1))], axis=0)
        if self.noisy and BACKEND == "tensorflow":
            import tensorflow as tf

            labels += 0.05 * tf.random.uniform(tf.shape(labels)) + 0.01 * tf.random.normal((2 * count, 1))
        else:
            labels += 0.05 * keras.random.uniform(labels.shape, seed=self.seed_generator)
        both, latent = ops.concatenate([fake, real], axis=0), self._latent(count)
        d_loss = self._learn(
            self.d_optimizer, self.discriminator, lambda: self.loss_fn(labels, self.discriminator(both, training=True))
        )
        g_loss = self._learn(
            self.g_optimizer,
            self.generator,
            lambda: self.loss_fn(ops.zeros((count, 1)), self.discriminator(self.generator(latent), training=True)),
        )
        self.d_loss_metric.update_state(d_loss)
        self.g_loss_metric.update_state(g_loss)
        return {"d_loss": self.d_loss_metric.result(), "g_loss": self.g_loss_metric.result()}

    def _latent(self, count):
        return keras.random.normal((count, 3), seed=self.seed_generator)

    def _learn(self, optimizer, part, loss_fn):
        weights = part.trainable_weights
        if BACKEND == "tensorflow":
            import tensorflow as tf

            with tf.GradientTape() as tape:
                loss = loss_fn()
            optimizer.apply_gradients(zip(tape.gradient(loss, weights), weights, strict=True))
        else:
            import torch

            self.zero_grad()
            loss = loss_fn()
            loss.backward()
            with torch.no_grad():
                optimizer.apply([v.value.grad for v in weights], weights)
        return loss


def compiled_gan(noisy=False, rate=1e-2):
    keras.utils.set_random_seed(0)
    model = GAN(noisy)
    model.built = True
    loss = keras.losses.BinaryCrossentropy(from_logits=True)
    model.compile(keras.optimizers.Adam(rate), keras.optimizers.Adam(2e-2), loss)
    return model


def digest(model):
    """Returns a digest of everything that learns or counts: weights, seeds, both optimizers."""
    variables = [*model.variables, *model.d_optimizer.variables, *model.g_optimizer.variables]
    return hashlib.sha256(b"".join(ops.convert_to_numpy(v).tobytes() for v in variables)).hexdigest()


def fit_gan(directory, epochs=4, callbacks=()):
    model = compiled_gan(noisy=True)
    kept = {"model_dir": directory, "callbacks": list(callbacks)}
    history = es.fit(model, X, batch_size=8, epochs=epochs, verbose=0, **kept)
    return digest(model), history.history


class Killed(keras.callbacks.Callback):
    def __init__(self, epoch):
        super().__init__()
        self.epoch = epoch

    def on_epoch_begin(self, epoch, logs=None):
        if epoch == self.epoch:
            os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    fit_gan(sys.argv[1], callbacks=[Killed(int(sys.argv[2]))])
