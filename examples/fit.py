"""`everstep.fit`: a compiled Keras model, trained as `model.fit` would, several steps per compiled call.

    python examples/fit.py --backend jax

With a run directory the same command, run again, resumes; finished, it does nothing and reports what there is.
"""

import argparse
import json
from pathlib import Path

import numpy as np

import everstep as es
from everstep.engine import backend
from everstep.recipes.mnist_data import load_mnist

parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
parser.add_argument("--backend", choices=backend.installed(), help="default: KERAS_BACKEND, else what is installed")
parser.add_argument("--model-dir", help="the run directory, by default runs/fit-BACKEND; a second run resumes there")
parser.add_argument("--epochs", type=int, default=4)
args = parser.parse_args()
name = backend.select(args.backend)  # before anything imports Keras
model_dir = args.model_dir or f"runs/fit-{name}"

import keras  # noqa: E402
from keras import layers  # noqa: E402


def load(split, count):
    images, labels = load_mnist(split)
    return images[:count] / np.float32(255), labels[:count].astype("int32")


keras.utils.set_random_seed(0)
model = keras.Sequential(
    [
        keras.Input((28, 28)),
        layers.Flatten(),
        layers.Dense(64, activation="relu"),
        layers.Dropout(0.2),
        layers.Dense(10, activation="softmax"),
    ]
)
model.compile(keras.optimizers.Adam(2e-3), "sparse_categorical_crossentropy", metrics=["accuracy"])

history = es.fit(
    model,
    *load("train", 20_000),
    batch_size=128,
    epochs=args.epochs,
    validation_data=load("test", 5_000),
    callbacks=[
        keras.callbacks.ReduceLROnPlateau(patience=1),
        keras.callbacks.EarlyStopping(monitor="val_accuracy", patience=2, restore_best_weights=True),
    ],
    model_dir=model_dir,
    verbose=0,
)

logged = history.history  # of all epochs, also those of earlier attempts
for i, epoch in enumerate(history.epoch):
    print(f"epoch {epoch + 1}: loss {logged['loss'][i]:.4f}, validation accuracy {logged['val_accuracy'][i]:.4f}")

run = json.loads((Path(model_dir) / "run.json").read_text())
print(f"accuracy: {run['metrics']['validation']['accuracy']:.4f}")
print(f"{run['status']} at step {run['step']}, attempts: {len(run['attempts'])}; exported to {model_dir}/export")
