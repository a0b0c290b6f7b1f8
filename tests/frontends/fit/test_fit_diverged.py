"""A run that diverges ends with its epoch: callbacks have seen it, nothing of it is kept, and the record says so."""

import keras
import numpy as np
import pytest
from keras import callbacks, layers

import everstep as es
from everstep.errors import TrainingError
from everstep.run.kept_work import goodput
from everstep.run.record import read

pytestmark = [pytest.mark.backend, pytest.mark.daily("torch"), pytest.mark.usefixtures("no_export")]

STEPS, EPOCHS = 4, 5
X = np.random.default_rng(0).normal(size=(8 * STEPS, 4)).astype("float32")
Y = X.sum(axis=1, keepdims=True)


class Spoils(callbacks.Callback):
    """Makes a weight NaN in the second epoch."""

    def on_epoch_begin(self, epoch, logs=None):
        if epoch == 1:
            self.model.layers[0].kernel.assign(np.full((4, 1), np.nan))


class Seen(callbacks.Callback):
    def on_epoch_end(self, epoch, logs):
        SEEN.append((epoch, sorted(name for name, value in logs.items() if not np.isfinite(value))))


SEEN = []


def fit(folder, x=X, watch=(), optimizer="sgd", validated=True, **options):
    SEEN.clear()
    model = keras.Sequential([keras.Input((4,)), layers.Dense(1)])
    model.compile(optimizer, options.pop("loss", "mse"))
    data = {"validation_data": (X[:8], Y[:8])} if validated else {}
    options = {"batch_size": 8, "shuffle": False, "seed": 1, "verbose": 0, **data, **options}
    return es.fit(model, x, Y, epochs=EPOCHS, model_dir=folder, callbacks=list(watch), **options)


def saved_steps(folder):
    return sorted(int(path.name) for path in (folder / "checkpoints").glob("[0-9]*"))


@pytest.mark.parametrize("watch", [[Spoils, Seen], [Spoils]], ids=["watched", "unwatched"])
def test_weights_that_become_nan_end_the_run_with_their_epoch(tmp_path, watch):
    with pytest.raises(TrainingError) as failed:
        fit(tmp_path, watch=[one() for one in watch])
    assert failed.value.reason == "the training loss is nan at step 5; the checkpoint of step 4 is the last good one"
    assert failed.value.history.epoch == [0, 1]
    assert np.isnan(failed.value.history.history["val_loss"]).tolist() == [False, True]
    assert ([(0, []), (1, ["loss", "val_loss"])] if Seen in watch else []) == SEEN
    assert saved_steps(tmp_path) == [STEPS]
    record = read(tmp_path)
    assert record["status"] == "failed"
    assert record["attempts"][-1]["reason"].endswith(f"{failed.value}"), "without keys that fit does not have"
    assert (goodput(record).steps_kept, goodput(record).steps_computed) == (STEPS, 2 * STEPS)


def test_the_same_call_repeats_only_the_epoch_that_diverged(tmp_path):
    for _ in range(2):
        with pytest.raises(TrainingError) as failed:
            fit(tmp_path, watch=[Spoils(), Seen()])
    assert [epoch for epoch, _ in SEEN] == [1]
    assert failed.value.history.epoch == [0, 1]
    record = read(tmp_path)
    assert [(one["from_step"], one["to_step"]) for one in record["attempts"]] == [(0, 2 * STEPS), (STEPS, 2 * STEPS)]
    assert (goodput(record).steps_kept, goodput(record).steps_computed) == (STEPS, 3 * STEPS)


def test_without_the_cause_the_same_call_goes_on(tmp_path, monkeypatch):
    with pytest.raises(TrainingError):
        fit(tmp_path, watch=[Spoils()])
    monkeypatch.setattr(Spoils, "on_epoch_begin", lambda self, epoch, logs=None: None)
    assert fit(tmp_path, watch=[Spoils()]).epoch == list(range(EPOCHS))
    assert saved_steps(tmp_path)[-1] == STEPS * EPOCHS


def test_a_loss_that_is_not_finite_ends_the_run_even_if_the_weights_are(tmp_path):
    def loss(y, y_pred):
        return keras.ops.mean(y_pred) * 0 + keras.ops.stop_gradient(keras.ops.mean(y_pred) / 0.0)

    with pytest.raises(TrainingError) as failed:
        fit(tmp_path, loss=loss)
    assert failed.value.history.epoch == [0]
    assert np.isfinite(failed.value.history.model.get_weights()[0]).all()
    assert saved_steps(tmp_path) == []


@pytest.mark.parametrize("validated", [True, False])
def test_a_variable_that_is_not_finite_is_named_if_the_loss_is(tmp_path, validated):
    class SpoilsMoment(callbacks.Callback):
        """Keras's loss does not depend on the moments of an optimizer that does not train."""

        def on_epoch_begin(self, epoch, logs=None):
            if epoch == 1:
                self.model.optimizer.variables[2].assign(np.full((4, 1), np.inf))

    with pytest.raises(TrainingError) as failed:
        fit(tmp_path, watch=[SpoilsMoment(), Seen()], optimizer="adagrad", validated=validated)
    assert failed.value.reason.endswith("is not finite after step 8; the checkpoint of step 4 is the last good one")
    assert SEEN == [(0, []), (1, [])]
    assert saved_steps(tmp_path) == [STEPS]


def test_terminate_on_nan_ends_training_as_in_fit(tmp_path, caplog):
    bad = X.copy()
    bad[20] = np.nan
    history = fit(tmp_path, bad, watch=[callbacks.TerminateOnNaN(), Seen()])
    assert history.epoch == [0]
    assert np.isnan(history.history["loss"]).all()
    assert np.isnan(history.model.get_weights()[0]).all()
    assert "training was ended by a callback: the run is recorded as failed" in caplog.text
    record = read(tmp_path)
    assert (record["status"], goodput(record).steps_kept) == ("failed", 0)


def test_without_a_directory_training_goes_on_as_in_fit():
    bad = X.copy()
    bad[20] = np.nan
    assert fit(None, bad, watch=[Seen()]).epoch == list(range(EPOCHS))
    assert len(SEEN) == EPOCHS
