"""`EarlyStopping` in `fit`: the run says when it stopped, and shows the numbers of its last weights."""

import keras
import numpy as np
import pytest

import everstep as es
from everstep.run import Overview, choose, read, read_final_weights

pytestmark = [pytest.mark.backend, pytest.mark.usefixtures("no_export")]

X = np.random.default_rng(0).normal(size=(32, 3)).astype("float32")
Y = X[:, :1]


class Worse(keras.callbacks.Callback):
    """Makes the second epoch the best one."""

    def on_epoch_end(self, epoch, logs=None):
        logs["val_loss"] = [3.0, 1.0, 2.0, 2.5, 2.6, 2.7][epoch]


def train(directory, epochs=6, restore=True, stopping=None, dropout=0.1, **kwargs):
    keras.utils.set_random_seed(1)
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1), keras.layers.Dropout(dropout)])
    model.compile("sgd", "mse")
    stopping = stopping or keras.callbacks.EarlyStopping(patience=2, restore_best_weights=restore)
    history = es.fit(
        model, X, Y, 8, epochs, callbacks=[Worse(), stopping], validation_data=(X, Y), model_dir=directory, **kwargs
    )
    return model, history


def test_the_record_and_the_screen(tmp_path, capsys):
    train(tmp_path / "run")
    record = read(tmp_path / "run")
    reason = "EarlyStopping, val_loss has not improved for 2 epochs"
    assert record["stopped_early"] == {"step": 16, "epoch": 4, "reason": reason}
    assert (record["epochs"], record["steps_per_epoch"], record["epoch"]) == (6, 4, 4)
    final = read_final_weights(record, tmp_path / "run")
    assert (final.step, final.epoch) == (8, 2)
    assert set(final.metrics["validation"]) == set(record["metrics"]["validation"])
    assert final.metrics["validation"] != record["metrics"]["validation"]
    note = "the weights of epoch 2 (step 8), restored at the end"
    chosen = {wanted: choose(tmp_path / "run", wanted).description for wanted in ("best", "last", "8", "12")}
    assert chosen == {"best": f"step 8: {note}", "last": f"step 16: {note}", "8": "step 8", "12": "step 12"}
    shown = capsys.readouterr().err
    assert "plan: epochs 1 to 6 of 4 steps" in shown
    assert f"stopped early at epoch 4 of 6: {reason}\n" in shown
    train(tmp_path / "run")
    shown = capsys.readouterr().err
    assert f"nothing left to train: the run was stopped early at epoch 4 (step 16): {reason}." in shown
    assert "stopped early at epoch 4 of 6" not in shown
    again = read(tmp_path / "run")
    assert (again["stopped_early"], again["final_weights"]) == (record["stopped_early"], record["final_weights"])


def test_without_restored_weights(tmp_path):
    train(tmp_path / "run", restore=False, verbose=0)
    record = read(tmp_path / "run")
    assert record["stopped_early"]["epoch"] == 4
    assert read_final_weights(record, tmp_path / "run") is None
    assert Overview(tmp_path / "run", record, None).final_weights is None


def test_weights_that_are_restored_at_the_end_of_all_epochs(tmp_path):
    train(tmp_path / "run", epochs=3, verbose=0)
    record = read(tmp_path / "run")
    assert record["stopped_early"] is None
    assert read_final_weights(record, tmp_path / "run").epoch == 2


class OwnBest(keras.callbacks.Callback):
    """Restores weights in a way of its own."""

    def on_epoch_end(self, epoch, logs=None):
        if epoch == 1:
            self.kept = self.model.get_weights()

    def on_train_end(self, logs=None):
        self.model.set_weights(self.kept)


def test_a_callback_of_the_user(tmp_path):
    """It is known by the digests of the saved weights."""
    train(tmp_path / "run", epochs=4, stopping=OwnBest(), dropout=0.0, verbose=0)
    assert read_final_weights(read(tmp_path / "run"), tmp_path / "run").epoch == 2


def test_training_further_forgets_the_stop(tmp_path, capsys):
    train(tmp_path / "run", epochs=3)
    train(tmp_path / "run", epochs=6)
    shown = capsys.readouterr().err
    assert "resumed at step 12, attempt 2 (3 epochs done)\n" in shown
    assert "plan: epochs 4 to 6 of 4 steps" in shown
    record = read(tmp_path / "run")
    assert record["stopped_early"]["epoch"] == 4
    assert read_final_weights(record, tmp_path / "run").epoch == 2
