"""A training with callbacks that remember, and ways to end it before its time.

Run as a program it is killed at the given point: `python fit_program.py <directory> <point>`.
"""

import contextlib
import hashlib
import json
import os
import random
import signal
import sys
from pathlib import Path

import keras
import numpy as np
import pytest
from keras import callbacks, layers

import everstep as es
from everstep.loop.controller import Controller
from everstep.loop.hooks import Hook
from everstep.loop.keras_callbacks import KerasCallbacks

RNG = np.random.default_rng(0)
X = RNG.normal(size=(56, 4)).astype("float32")
Y = (X.sum(axis=1) + 0.5 * RNG.normal(size=56) > 0).astype("int32") + (X[:, 0] > 1)
DATA, TEST = (X[:40], Y[:40]), (X[40:], Y[40:])
STEPS = 5
EPOCHS = 30


class Noise(callbacks.Callback):
    """Counts, draws from every generator there is, and moves a weight by what it drew: a slip shows in the weights."""

    def __init__(self):
        super().__init__()
        self.count, self.first, self.drawn, self.rates = 0, 0, [], []
        self.own = np.random.default_rng(7)

    def on_train_begin(self, logs=None):
        self.first = 1

    def on_epoch_begin(self, epoch, logs=None):
        self.count += 1
        drawn = [random.random(), float(np.random.normal()), float(self.own.normal()), self.first]
        self.drawn.append((epoch, *drawn))
        bias = self.model.layers[-1].bias
        bias.assign(bias + 0.01 * sum(drawn))

    def on_epoch_end(self, epoch, logs=None):
        self.first = 0
        self.rates.append(float(keras.ops.convert_to_numpy(self.model.optimizer.learning_rate)))


class EveryBatch(callbacks.Callback):
    """Changes the learning rate at every batch, opens and closes what cannot be saved, and returns what can."""

    def __init__(self):
        super().__init__()
        self._seen = np.zeros(4, "int64")
        self._open = {}

    def on_epoch_begin(self, epoch, logs=None):
        self._open["epoch"] = object()

    def on_epoch_end(self, epoch, logs=None):
        del self._open["epoch"]

    def on_train_batch_begin(self, batch, logs=None):
        self._open["batch"] = object()
        self._seen[0] += 1
        self.model.optimizer.learning_rate = 0.02 + 0.01 * random.random()

    def on_train_batch_end(self, batch, logs=None):
        del self._open["batch"]
        self._seen[1] += 1

    def on_test_begin(self, logs=None):
        self._open["test"] = object()

    def on_test_end(self, logs=None):
        del self._open["test"]

    def on_test_batch_begin(self, batch, logs=None):
        self._seen[2] += 1

    def on_test_batch_end(self, batch, logs=None):
        self._seen[3] += int(np.random.randint(10))

    def get_state(self):
        return {"seen": self._seen}

    def set_state(self, state):
        self._seen = state["seen"]


class Deadly(callbacks.Callback):
    """Kills its process; what it was made with is no state, and differs from attempt to attempt."""

    def __init__(self, at):
        super().__init__()
        self.at = at

    def die_at(self, point):
        if point == self.at:
            die()

    def on_epoch_begin(self, epoch, logs=None):
        self.die_at(f"begin {epoch}")

    def on_epoch_end(self, epoch, logs=None):
        self.die_at(f"end {epoch}")

    def on_train_end(self, logs=None):
        self.die_at("stopped")


def dropout_classifier():
    keras.utils.set_random_seed(0)
    model = keras.Sequential(
        [keras.Input((4,)), layers.Dense(16, "tanh"), layers.Dropout(0.2), layers.Dense(3, "softmax")]
    )
    model.compile(keras.optimizers.Adam(0.05), "sparse_categorical_crossentropy", metrics=["accuracy"])
    return model


def outcome_of_fit(model_dir, at="", every_batch=False, more=(), validation_data=TEST, data=DATA, **kwargs):
    """Trains to the end, and returns everything that a resumed run could get wrong."""
    model, monitor = dropout_classifier(), "loss" if validation_data is None else "val_loss"
    watching = [
        callbacks.CSVLogger(Path(model_dir).parent / "log.csv"),
        callbacks.ReduceLROnPlateau(monitor, patience=1, factor=0.7, min_delta=0.01, cooldown=2),
        callbacks.EarlyStopping(monitor, patience=4, min_delta=0.01, restore_best_weights=True),
        Noise(),
        *([EveryBatch()] if every_batch else []),
        Deadly(at),
        *more,
    ]
    given = {"epochs": EPOCHS, "model_dir": model_dir, "verbose": False, **kwargs}
    given |= {"batch_size": 8} if data is DATA else {}
    try:
        history = es.fit(model, data, validation_data=validation_data, callbacks=watching, **given)
    finally:
        if watching[0].csv_file:  # it is there when anything was left to train
            watching[0].csv_file.close()
    _, reduce, stop, noise, *_ = watching
    return {
        "weights": [hashlib.sha256(w.tobytes()).hexdigest() for w in model.get_weights()],
        "history": history.history,
        "epochs": history.epoch,
        "stopped": [stop.stopped_epoch, stop.best_epoch, stop.best, stop.wait],
        "reduced": [reduce.best, reduce.wait, reduce.cooldown_counter],
        "rates": noise.rates,
        "drawn": [list(row) for row in noise.drawn],
        "count": noise.count,
        "seen": [callback._seen.tolist() for callback in watching if isinstance(callback, EveryBatch)],
        "log": (Path(model_dir).parent / "log.csv").read_text(),
        "digest": json.loads((Path(model_dir) / "run.json").read_text())["digest"],
    }


def averaged(model_dir, epochs=4):
    """Trains on a learning rate that each epoch's beginning lowers, with averaged weights swapped in and out."""
    keras.utils.set_random_seed(0)
    model = keras.Sequential([keras.Input((4,)), layers.Dense(3, "softmax")])
    model.compile(keras.optimizers.Adam(0.05, use_ema=True, ema_momentum=0.8), "sparse_categorical_crossentropy")
    best = callbacks.ModelCheckpoint(model_dir.parent / "best.keras", "val_loss", save_best_only=True)
    watching = [
        callbacks.LearningRateScheduler(lambda epoch, rate: rate * 0.9),
        callbacks.SwapEMAWeights(swap_on_epoch=True),
        best,
        Noise(),
    ]
    given = {"epochs": epochs, "batch_size": 8, "model_dir": model_dir, "verbose": False}
    history = es.fit(model, DATA, validation_data=TEST, callbacks=watching, **given)
    return history.history, [weights.tolist() for weights in model.get_weights()], best.best


# -- ways to end -------------------------------------------------------------------------------------------------------


class Cut(SystemExit):
    """The end of an attempt, not of the run."""


def die():
    os.kill(os.getpid(), signal.SIGKILL)


class Cutting(Hook):
    """Ends the attempt at a point of its choice, as a signal does.

    `step N` is after the Nth step, with all that belongs to it still to be done; `evaluation N` in the evaluation then;
    `begin N` when it was all done.
    """

    def __init__(self, at, killed, callbacks):
        self.at, self.killed, self.callbacks, self.reached = at, killed, callbacks, False

    def setup(self, controller):
        super().setup(controller)
        controller._stop_requested = controller._stop_agreed = lambda: Cut() if self.reached else None

    @property
    def watches_evaluation_batches(self):
        return bool(self.callbacks.single_evaluations)

    def on_train_begin(self):
        self.controller.trainer.step_by_step()

    def on_window_begin(self, step):
        self.cut(f"begin {step}")

    def on_call_end(self, step):
        self.reached = self.at == f"step {step}"

    def on_evaluation_begin(self, step, num_steps):
        if not self.watches_evaluation_batches:
            self.cut(f"evaluation {step}")

    def on_evaluation_batch_end(self, done):
        self.cut(f"evaluation {self.controller.step}")
        return True

    def cut(self, point):
        if point == self.at:
            self.reached = True
            raise Cut

    def on_exit(self, error):
        if self.reached:
            self.controller.checkpointer.close()
        if self.reached and self.killed:
            die()


@contextlib.contextmanager
def cutting(at, killed=False):
    def create(**settings):
        callbacks = next(hook for hook in settings["hooks"] if isinstance(hook, KerasCallbacks))
        return Controller(**{**settings, "hooks": [Cutting(at, killed, callbacks), *settings["hooks"]]})

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("everstep.run.exporting.export_all", lambda *args: [])
        patch.setattr("everstep.loop.controller_creation.Controller", create)
        yield


class Asks(callbacks.Callback):
    """Asks its own process to end, as a scheduler would, in a hook of its choice."""

    def __init__(self, at):
        super().__init__()
        self.at, self.epoch = at, 0

    def ask_at(self, point):
        if point == self.at:
            signal.raise_signal(signal.SIGTERM)

    def on_epoch_begin(self, epoch, logs=None):
        self.epoch = epoch
        self.ask_at(f"begin {epoch}")

    def on_epoch_end(self, epoch, logs=None):
        self.ask_at(f"end {epoch}")

    def on_test_begin(self, logs=None):
        self.ask_at(f"test {self.epoch}")


class AsksAtBatches(Asks):
    def on_train_batch_end(self, batch, logs=None):
        self.ask_at(f"batch {self.epoch}.{batch}")

    def on_test_batch_end(self, batch, logs=None):
        self.ask_at(f"test {self.epoch}.{batch}")


def main(model_dir, at):
    with cutting(at, killed=True), pytest.MonkeyPatch.context() as patch:
        patch.setattr("everstep.run.exporting.export_all", lambda *args: Deadly(at).die_at("finished"))
        print(json.dumps(outcome_of_fit(model_dir, at)))


if __name__ == "__main__":
    main(*sys.argv[1:])
