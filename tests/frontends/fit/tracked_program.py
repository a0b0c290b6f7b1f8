"""A training with trackers, tags and a report, which is killed at a point: `python tracked_program.py FOLDER POINT`."""

import os
import signal
import sys
from pathlib import Path

import keras
import numpy as np
from keras import layers

import everstep as es
from everstep import report
from everstep.frontends import final_samples

X = np.random.default_rng(0).normal(size=(40, 4)).astype("float32")
Y = (X.sum(axis=1) > 0).astype("int32")
TEST = X[:16], Y[:16]
EPOCHS, STEPS = 3, 5


def classifier(**arguments):
    """Returns a small compiled classifier, always with the same weights."""
    keras.utils.set_random_seed(0)
    model = keras.Sequential([keras.Input((4,)), layers.Dropout(0.2), layers.Dense(2, "softmax")], **arguments)
    model.compile("adam", "sparse_categorical_crossentropy", metrics=["accuracy"])
    return model


def train(directory, *callbacks, **arguments):
    """Trains it, or resumes; returns its History."""
    given = {"batch_size": 8, "epochs": EPOCHS, "verbose": 0, "seed": 1, "validation_data": TEST, **arguments}
    return es.fit(classifier(), X, Y, model_dir=directory, callbacks=list(callbacks), **given)


def tracked(folder):
    """Trains it with everything that is said about a run."""
    return train(
        folder / "runs" / "a",
        DieInTheLastEpoch(),
        tracking=["mlflow", "jsonl"],
        name="baseline",
        tags={"team": "vision", "small": ""},
        notes="The first with dropout.",
        report=True,
    )


def die(*arguments, **others):
    """Ends this process at once."""
    os.kill(os.getpid(), signal.SIGKILL)


class DieInTheLastEpoch(keras.callbacks.Callback):
    """Where one epoch is left, if the program is called with this point."""

    def on_epoch_begin(self, epoch, logs=None):
        if epoch == EPOCHS - 1 and sys.argv[2:] == ["training"]:
            die()


if __name__ == "__main__":
    where, point = Path(sys.argv[1]), sys.argv[2]
    if point == "before the samples":
        final_samples.evaluate_samples = die
    if point == "before the report":
        report.write = die
    tracked(where)
