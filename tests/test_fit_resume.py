"""`everstep.fit` with callbacks that remember, killed and run again: as if nothing had happened.

Run as a program, this file is the script that is killed: `python test_fit_resume.py <directory> <where to die>`.
"""

import contextlib
import hashlib
import json
import os
import random
import signal
import subprocess
import sys
from pathlib import Path

import keras
import numpy as np
import pytest
from keras import callbacks, layers

import everstep as es
from everstep.errors import UsageError
from everstep.loop.epochs import EpochController

pytestmark = pytest.mark.backend

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
        self.count, self.drawn, self.rates = 0, [], []
        self.own = np.random.default_rng(7)

    def on_epoch_begin(self, epoch, logs=None):
        self.count += 1
        drawn = [random.random(), float(np.random.normal()), float(self.own.normal())]
        self.drawn.append((epoch, *drawn))
        bias = self.model.layers[-1].bias
        bias.assign(bias + 0.01 * sum(drawn))

    def on_epoch_end(self, epoch, logs=None):
        self.rates.append(float(keras.ops.convert_to_numpy(self.model.optimizer.learning_rate)))


class EveryBatch(callbacks.Callback):
    """Changes the learning rate at every batch, and remembers by its own means."""

    def __init__(self):
        super().__init__()
        self._seen = np.zeros(4, "int64")

    def on_train_batch_begin(self, batch, logs=None):
        self._seen[0] += 1
        self.model.optimizer.learning_rate = 0.02 + 0.01 * random.random()

    def on_train_batch_end(self, batch, logs=None):
        self._seen[1] += 1

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


def made():
    keras.utils.set_random_seed(0)
    model = keras.Sequential(
        [keras.Input((4,)), layers.Dense(16, "tanh"), layers.Dropout(0.2), layers.Dense(3, "softmax")]
    )
    model.compile(keras.optimizers.Adam(0.05), "sparse_categorical_crossentropy", metrics=["accuracy"])
    return model


def trained(model_dir, at="", every_batch=False, validation_data=TEST, **kwargs):
    """Trains to the end, and returns everything that a resumed run could get wrong."""
    model, monitor = made(), "loss" if validation_data is None else "val_loss"
    watching = [
        callbacks.CSVLogger(Path(model_dir).parent / "log.csv"),
        callbacks.ReduceLROnPlateau(monitor, patience=1, factor=0.7, min_delta=0.01, cooldown=2),
        callbacks.EarlyStopping(monitor, patience=4, min_delta=0.01, restore_best_weights=True),
        Noise(),
        *([EveryBatch()] if every_batch else []),
        Deadly(at),
    ]
    given = {"epochs": EPOCHS, "batch_size": 8, "model_dir": model_dir, "verbose": False, **kwargs}
    try:
        history = es.fit(model, DATA, validation_data, callbacks=watching, **given)
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


# -- asked to end in between: saved there, and run again in the same process -------------------------------------------


class Cut(BaseException):
    """The end of an attempt, not of the run."""


def die():
    os.kill(os.getpid(), signal.SIGKILL)


class Cutting(EpochController):
    """Saves at a point of its choice, as on a signal, and ends the attempt.

    `step N` is after the Nth step, with all that belongs to it still to be done; `evaluation N` in the evaluation then.
    """

    at, killed = "", False

    def _begin(self):
        self.trainer.step_by_step()
        super()._begin()
        report = self.trainer.after_call
        self.trainer.after_call = lambda step: report(step) and self.cut(f"step {step}")

    def _after_evaluation_step(self, done):
        if self.at == f"evaluation {self.step}":
            raise Cut
        return super()._after_evaluation_step(done)

    def evaluate(self, steps=-1):
        try:
            return super().evaluate(steps) if self.callbacks.single_evaluations else self._evaluate_unseen(steps)
        except Cut:
            return self.cut(self.at)

    def _evaluate_unseen(self, steps):
        if self.at == f"evaluation {self.step}":
            raise Cut
        return super().evaluate(steps)

    def cut(self, point):
        if point == self.at:
            self.save_checkpoint()
            self.checkpointer.close()
            if self.killed:
                die()
            raise Cut
        return True


@contextlib.contextmanager
def cutting(at, killed=False):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("everstep.experiment.export_all", lambda *args: [])
        patch.setattr("everstep.fitting.EpochController", type("CuttingHere", (Cutting,), {"at": at, "killed": killed}))
        yield


def whole(folder, **kwargs):
    with cutting("nowhere"):
        return trained(folder / "run", **kwargs)


def assert_same(folder, wanted, cuts, **kwargs):
    """Cuts a run at points, one after the other, and compares how it ends."""
    for at in cuts:
        with cutting(at), pytest.raises(Cut):
            trained(folder / "run", **kwargs)
    assert whole(folder, **kwargs) == wanted


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory):
    return whole(tmp_path_factory.mktemp("whole"))


def test_the_run_is_worth_resuming(uninterrupted):
    """It stops early, some epochs after its best one, on a learning rate that fell more than once."""
    stopped, best, *_ = uninterrupted["stopped"]
    assert 6 < stopped < EPOCHS - 1
    assert best < stopped
    assert len(set(uninterrupted["rates"])) > 2
    assert uninterrupted["epochs"] == list(range(stopped + 1))
    assert len(uninterrupted["log"].splitlines()) == stopped + 2


def test_cut_inside_epochs_and_evaluations(tmp_path):
    """Hooks at every batch: inside an epoch, twice in it, after its last step, in its evaluation, in the last one."""
    several = {"every_batch": True, "epochs": 4}
    wanted = whole(tmp_path / "whole", **several)
    cuts = ["step 7", "step 8", "step 10", "evaluation 15", "step 20"]
    assert_same(tmp_path / "cut", wanted, cuts, **several)


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
    ]
    given = {"epochs": epochs, "batch_size": 8, "model_dir": model_dir, "verbose": False}
    history = es.fit(model, DATA, TEST, callbacks=watching, **given)
    return history.history, [weights.tolist() for weights in model.get_weights()], best.best


def test_schedule_and_averages(tmp_path):
    """Each epoch begins once: the rate falls by a tenth an epoch, and the weights trained are not the averages."""
    with cutting("nowhere"):
        wanted = averaged(tmp_path / "whole" / "run")
    for at in ("step 5", "step 12", "evaluation 15"):
        with cutting(at), pytest.raises(Cut):
            averaged(tmp_path / "cut" / "run")
    with cutting("nowhere"):
        assert averaged(tmp_path / "cut" / "run") == wanted
    assert wanted[0]["learning_rate"] == pytest.approx([0.045, 0.0405, 0.03645, 0.032805])


def test_more_epochs_go_on_from_what_callbacks_know(tmp_path):
    with cutting("nowhere"):
        whole_history, _, best = averaged(tmp_path / "whole" / "run")
        averaged(tmp_path / "cut" / "run", epochs=2)
        history, _, _ = averaged(tmp_path / "cut" / "run")
    assert history["learning_rate"] == whole_history["learning_rate"]
    assert history["val_loss"][:2] == whole_history["val_loss"][:2]


def test_other_callbacks_are_refused(tmp_path):
    """Before anything is done, by the name of what is missing and what is new."""
    averaged_dir = tmp_path / "whole" / "run"
    with cutting("nowhere"):
        averaged(averaged_dir, epochs=1)
        before = {path: path.read_bytes() for path in averaged_dir.rglob("*") if path.is_file()}
        with pytest.raises(UsageError, match=r"missing: LearningRateScheduler, .*ModelCheckpoint; unexpected: Noise"):
            es.fit(made(), DATA, TEST, callbacks=[Noise()], model_dir=averaged_dir, epochs=2, batch_size=8)
    assert {path: path.read_bytes() for path in averaged_dir.rglob("*") if path.is_file()} == before


@pytest.mark.full
def test_cut_where_no_hook_looks(uninterrupted, tmp_path):
    last = len(uninterrupted["epochs"]) * STEPS
    for end in (f"step {last}", f"evaluation {last}"):
        assert_same(tmp_path / end, uninterrupted, ["step 1", "step 5", "evaluation 10", "step 13", end])


@pytest.mark.full
def test_cut_without_validation(tmp_path):
    short = {"validation_data": None, "epochs": 3, "every_batch": True}
    wanted = whole(tmp_path / "whole", **short)
    assert_same(tmp_path / "cut", wanted, ["step 3", "step 5", "step 14", "step 15"], **short)


@pytest.mark.full
def test_cut_anywhere(tmp_path):
    short = {"every_batch": True, "epochs": 3}
    wanted = whole(tmp_path / "whole", **short)
    for step in range(1, 3 * STEPS + 1):
        assert_same(tmp_path / f"step {step}", wanted, [f"step {step}"], **short)
        if step % STEPS == 0:
            assert_same(tmp_path / f"evaluation {step}", wanted, [f"evaluation {step}"], **short)


# -- real processes, killed --------------------------------------------------------------------------------------------


def attempt(model_dir, at):
    """Runs this file; returns what it printed, or None where it was killed."""
    command = [sys.executable, __file__, str(model_dir), at]
    done = subprocess.run(command, capture_output=True, text=True, timeout=200, cwd=Path(__file__).parent)
    assert done.returncode == (-signal.SIGKILL if at else 0), done.stderr
    return None if at else json.loads(done.stdout.splitlines()[-1])


def main(model_dir, at):
    with cutting(at, killed=True), pytest.MonkeyPatch.context() as patch:
        patch.setattr("everstep.experiment.export_all", lambda *args: Deadly(at).die_at("finished"))
        print(json.dumps(trained(model_dir, at)))


def test_killed_in_the_middle_and_when_it_stopped(uninterrupted, tmp_path):
    for at in ("step 12", "stopped"):
        attempt(tmp_path / "run", at)
    assert attempt(tmp_path / "run", "") == uninterrupted


@pytest.mark.full
@pytest.mark.parametrize(
    "deaths", [["begin 0", "end 0", "begin 3", "end 3"], ["step 11", "step 12", "end 4"], ["finished", "finished"]]
)
def test_killed_elsewhere(uninterrupted, tmp_path, deaths):
    """Before and after a checkpoint, several times inside an epoch, and when all but the record was done."""
    for at in deaths:
        attempt(tmp_path / "run", at)
    assert attempt(tmp_path / "run", "") == uninterrupted


if __name__ == "__main__":
    main(*sys.argv[1:])
