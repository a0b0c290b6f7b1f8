"""A small training of the kind that is hard to repeat on a GPU: `python exact_run.py MODEL DIRECTORY KILLED_AT`.

It kills itself after the step KILLED_AT, if that is not 0.
"""

import os
import signal
import sys

import keras
import numpy as np
from keras import layers

import everstep

ROWS, BATCH, EPOCHS = 96, 8, 3
STEPS = ROWS // BATCH


def images():
    """Overlapping pooling, transposed convolutions, batch norm, and random changes of the images."""
    inputs = keras.Input((32, 32, 3), dtype="uint8")
    x = layers.RandomFlip("horizontal", seed=1)(layers.Rescaling(1 / 255)(inputs))
    x = layers.BatchNormalization()(layers.Conv2D(16, 3, padding="same", activation="relu")(x))
    x = layers.Conv2D(16, 3, padding="same")(layers.MaxPooling2D(3, 2, padding="same")(x))
    x = layers.Conv2DTranspose(16, 3, strides=2, padding="same", activation="relu")(x)
    return keras.Model(inputs, layers.Dense(10, dtype="float32")(layers.GlobalAveragePooling2D()(x)))


def texts():
    """An embedding, attention in half precision over many keys, and dropout."""
    inputs = keras.Input((512,), dtype="int32")
    x = layers.Embedding(50, 128)(inputs)
    x = x + layers.MultiHeadAttention(2, 64)(x, x, use_causal_mask=True)
    x = layers.Dropout(0.2)(layers.LayerNormalization()(x))
    return keras.Model(inputs, layers.Dense(10, dtype="float32")(layers.GlobalAveragePooling1D()(x)))


def numbers():
    """Short steps, of which a call holds several."""
    inputs = keras.Input((16,))
    x = layers.Dropout(0.2, seed=1)(layers.Dense(32, activation="relu")(inputs))
    return keras.Model(inputs, layers.Dense(10, dtype="float32")(x))


DATA = {
    "images": lambda random: random.integers(0, 256, (ROWS, 32, 32, 3), np.uint8),
    "texts": lambda random: random.integers(0, 50, (ROWS, 512), np.int32),
    "numbers": lambda random: random.random((ROWS, 16), np.float32),
}
MODELS = {"images": images, "texts": texts, "numbers": numbers}


class Killed(keras.callbacks.Callback):
    def __init__(self, at):
        super().__init__()
        self.at = at

    def on_epoch_begin(self, epoch, logs=None):
        self.epoch = epoch

    def on_train_batch_end(self, batch, logs=None):
        if self.at and self.epoch * STEPS + batch + 1 >= self.at:
            os.kill(os.getpid(), signal.SIGKILL)


def main(name, directory, killed_at):
    keras.utils.set_random_seed(0)
    keras.mixed_precision.set_global_policy("mixed_bfloat16")
    random = np.random.default_rng(0)
    x, y = DATA[name](random), random.integers(0, 10, ROWS)
    model = MODELS[name]()
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile("adam", loss, metrics=["accuracy"])
    call = {"batch_size": BATCH, "epochs": EPOCHS, "verbose": 0, "callbacks": [Killed(int(killed_at))]}
    everstep.fit(model, x, y, model_dir=directory, seed=0, export=[], **call)


if __name__ == "__main__":
    main(*sys.argv[1:])
