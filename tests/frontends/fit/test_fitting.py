"""`everstep.fit` against `model.fit`: the same numbers, the same calls."""

import csv
import json
import logging

import keras
import numpy as np
import pytest
from keras import callbacks, layers

import everstep as es
from everstep.testing.problems import raises_problem

pytestmark = pytest.mark.backend

RNG = np.random.default_rng(0)
X = RNG.normal(size=(48, 4)).astype("float32")
Y = (X.sum(axis=1) > 0).astype("int32") + (X[:, 0] > 1)
TEST = (RNG.normal(size=(16, 4)).astype("float32"), RNG.integers(0, 3, 16).astype("int32"))
WEIGHT = np.linspace(0.1, 2, 48).astype("float32")
STEPS = 6


def dense_classifier(optimizer=None, **compiled):
    """Returns a compiled model that starts from the same weights every time."""
    keras.utils.set_random_seed(0)
    model = keras.Sequential([keras.Input((4,)), layers.Dense(8, "tanh"), layers.Dense(3, "softmax")])
    model.compile(
        optimizer or keras.optimizers.Adam(0.05),
        **{"loss": "sparse_categorical_crossentropy", "metrics": ["accuracy"], **compiled},
    )
    return model


def keras_fit(model, data=(X, Y), validation_data=TEST, **kwargs):
    """`model.fit`, with the arguments of `everstep.fit`."""
    given = {"x": data() if callable(data) else data}
    if isinstance(data, tuple):
        given = dict(zip(("x", "y", "sample_weight"), data, strict=False)) | {"batch_size": 8}
    history = model.fit(**given, validation_data=validation_data, shuffle=False, verbose=0, **kwargs)
    return model, history


def our_fit(model, data=(X, Y), validation_data=TEST, **kwargs):
    given = {"shuffle": False, "verbose": 0, **kwargs}
    if isinstance(data, tuple):
        given |= {"batch_size": 8}
    history = es.fit(model, data, validation_data=validation_data, **given)
    return model, history


def assert_alike(make=dense_classifier, watch=list, **kwargs):
    """Trains with both, on callbacks that `watch` makes; returns the callbacks of both."""
    theirs, ours = watch(), watch()
    model, history = keras_fit(make(), callbacks=theirs, **kwargs)
    twin, same = our_fit(make(), callbacks=ours, **kwargs)
    assert same.epoch == history.epoch
    assert list(same.history) == list(history.history)
    for name, values in history.history.items():
        np.testing.assert_allclose(same.history[name], values, rtol=1e-5, err_msg=name)
    for mine, wanted in zip(twin.get_weights(), model.get_weights(), strict=True):
        np.testing.assert_allclose(mine, wanted, rtol=1e-4, atol=1e-6)
    return theirs, ours


# -- the same numbers --------------------------------------------------------------------------------------------------


def test_loss_and_metrics_with_short_last_batches():
    assert_alike(data=(X[:42], Y[:42]), validation_data=(X[:13], Y[:13]), epochs=3)


def test_sample_weight_and_averaging_optimizer():
    def make():
        optimizer = keras.optimizers.Adam(0.05, use_ema=True, ema_momentum=0.9)
        return dense_classifier(optimizer, metrics=[], weighted_metrics=["accuracy"])

    assert_alike(make, data=(X, Y, WEIGHT), epochs=2)


def test_class_weight():
    assert_alike(epochs=2, class_weight={0: 0.5, 1: 2.0, 2: 3.0})


@pytest.mark.full
def test_steps_per_epoch_and_validation_steps():
    assert_alike(epochs=4, steps_per_epoch=3, validation_steps=1)


def test_dataset():
    tf = pytest.importorskip("tensorflow")
    dataset = tf.data.Dataset.from_tensor_slices((X, Y)).batch(8)
    assert_alike(data=dataset, validation_data=tf.data.Dataset.from_tensor_slices(TEST).batch(8), epochs=2)


@pytest.mark.full
def test_generator():
    def batches():
        while True:
            yield from ((X[i : i + 8], Y[i : i + 8]) for i in range(0, 48, 8))

    assert_alike(data=batches, epochs=2, steps_per_epoch=STEPS)


def test_two_outputs_and_added_losses():
    def make():
        keras.utils.set_random_seed(0)
        inputs = keras.Input((4,))
        hidden = layers.Dense(6, "tanh", kernel_regularizer="l2", activity_regularizer="l2")(inputs)
        outputs = {"kind": layers.Dense(3, "softmax")(hidden), "sum": layers.Dense(1)(hidden)}
        model = keras.Model(inputs, outputs)
        losses = {"kind": "sparse_categorical_crossentropy", "sum": "mse"}
        model.compile("sgd", losses, loss_weights={"kind": 0.5, "sum": 2.0}, metrics={"kind": ["accuracy"]})
        return model

    assert_alike(make, data=(X, {"kind": Y, "sum": X.sum(axis=1, keepdims=True)}), validation_data=None, epochs=2)


@pytest.mark.full
def test_twice_goes_on_from_what_was_learned():
    model, twin = dense_classifier(), dense_classifier()
    for _ in range(2):
        keras_fit(model, epochs=1)
        _, history = our_fit(twin, epochs=1)
    np.testing.assert_allclose(history.history["loss"], model.history.history["loss"], rtol=1e-5)
    np.testing.assert_allclose(twin.evaluate(*TEST, verbose=0), model.evaluate(*TEST, verbose=0), rtol=1e-5)


# -- Keras's own callbacks ---------------------------------------------------------------------------------------------


def test_early_stopping_and_falling_learning_rate():
    stop = {"monitor": "val_loss", "patience": 2, "restore_best_weights": True}
    reduce = {"monitor": "val_loss", "patience": 1, "factor": 0.5}
    theirs, ours = assert_alike(
        watch=lambda: [callbacks.ReduceLROnPlateau(**reduce), callbacks.EarlyStopping(**stop)], epochs=30
    )
    assert 0 < ours[1].stopped_epoch == theirs[1].stopped_epoch
    assert ours[1].best_epoch == theirs[1].best_epoch


@pytest.mark.full
def test_model_checkpoint(tmp_path):
    best = callbacks.ModelCheckpoint(tmp_path / "best.keras", monitor="val_loss", save_best_only=True)
    model, _ = our_fit(dense_classifier(), epochs=2, callbacks=[best])
    loaded = keras.saving.load_model(tmp_path / "best.keras")
    assert loaded.evaluate(*TEST, verbose=0)[0] == pytest.approx(best.best, rel=1e-5)


def test_terminate_on_nan(capsys):
    """Stops in the same epoch; the batch is known only to Keras, which looks at every one."""
    bad = np.where(np.arange(48)[:, None] == 20, np.nan, X).astype("float32")
    losses = []
    for fit in (keras_fit, our_fit):
        regression = keras.Sequential([keras.Input((4,)), layers.Dense(1)])
        regression.compile("sgd", "mse")
        watch = [callbacks.TerminateOnNaN()]
        _, history = fit(regression, (bad, bad[:, :1]), None, epochs=3, callbacks=watch)
        losses.append(history.history["loss"])
    assert [np.isnan(loss).tolist() for loss in losses] == [[True], [True]]


# -- callbacks of one's own --------------------------------------------------------------------------------------------

HOOKS = [
    f"{kind}_{when}" for kind in ("train", "test", "epoch", "train_batch", "test_batch") for when in ("begin", "end")
]


class Recorder(callbacks.Callback):
    """Writes down every call: name, index, names in the logs, and the weights at that moment."""

    def __init__(self, hooks=HOOKS):
        super().__init__()
        self.calls, self.weights, self.losses = [], [], []
        for hook in hooks:
            setattr(self, f"on_{hook}", lambda *args, hook=hook, **kwargs: self.record(hook, *args, **kwargs))

    def record(self, hook, *args, logs=None):
        index = [arg for arg in args if isinstance(arg, int)]
        logs = next((arg for arg in args if isinstance(arg, dict)), logs) or {}
        self.calls.append((hook, *index, *sorted(logs)))
        self.weights.append(float(np.sum(np.abs(keras.ops.convert_to_numpy(self.model.layers[0].kernel)))))
        self.losses.append(float(logs.get("loss", 0.0)))


def assert_same_calls(theirs, ours):
    assert ours.calls == theirs.calls
    np.testing.assert_allclose(ours.weights, theirs.weights, rtol=1e-5)
    np.testing.assert_allclose(ours.losses, theirs.losses, rtol=1e-5)


def test_every_hook(caplog):
    seen = []

    def watch():
        seen.append([])
        log = seen[-1].append
        functions = callbacks.LambdaCallback(
            on_epoch_begin=lambda epoch, logs: log(("begin", epoch)),
            on_epoch_end=lambda epoch, logs: log(("end", epoch, *sorted(logs))),
            on_train_batch_end=lambda batch, logs: log((batch, *sorted(logs))),
        )
        return [Recorder(), functions]

    with caplog.at_level(logging.WARNING, "everstep"):
        (theirs, _), (ours, _) = assert_alike(watch=watch, epochs=2)
    assert_same_calls(theirs, ours)
    assert ours.calls.count(("train_batch_begin", STEPS - 1)) == 2
    assert seen[0] == seen[1]
    assert len(seen[0]) == 2 * (STEPS + 2)
    assert caplog.text.count("running single steps: Recorder, LambdaCallback") == 1
    assert caplog.text.count("evaluating in single steps: Recorder") == 1


@pytest.mark.full
def test_epoch_hooks_need_no_single_steps(tmp_path, caplog):
    """Between Keras's own: one changes the learning rate, one writes the logs that it gets."""
    paths = [tmp_path / "keras.csv", tmp_path / "everstep.csv"]
    remaining = iter(paths)

    def watch():
        scheduler = callbacks.LearningRateScheduler(lambda epoch, rate: rate * 0.5)
        return [scheduler, Recorder([h for h in HOOKS if "batch" not in h]), callbacks.CSVLogger(next(remaining))]

    with caplog.at_level(logging.WARNING, "everstep"):
        (_, theirs, _), (_, ours, _) = assert_alike(watch=watch, epochs=3)
    assert_same_calls(theirs, ours)
    assert "single steps" not in caplog.text
    wanted, written = (list(csv.DictReader(path.read_text().splitlines())) for path in paths)
    assert [list(row) for row in written] == [list(row) for row in wanted]
    assert "learning_rate" in written[0]
    for row, other in zip(written, wanted, strict=True):
        np.testing.assert_allclose([float(v) for v in row.values()], [float(v) for v in other.values()], rtol=1e-5)


@pytest.mark.full
def test_without_validation_hooks_are_fits():
    (theirs,), (ours,) = assert_alike(watch=lambda: [Recorder()], epochs=2, validation_data=None)
    assert_same_calls(theirs, ours)


class Warmup(callbacks.Callback):
    """Changes the learning rate before, and a weight after, every batch."""

    def on_train_batch_begin(self, batch, logs=None):
        self.model.optimizer.learning_rate = 0.01 * (batch + 1)

    def on_train_batch_end(self, batch, logs=None):
        bias = self.model.layers[-1].bias
        bias.assign(bias * 0.9)


@pytest.mark.full
def test_callback_may_change_what_is_trained():
    assert_alike(watch=lambda: [Warmup()], epochs=2)


class StopAt(callbacks.Callback):
    def __init__(self, batch):
        super().__init__()
        self.batch = batch

    def on_train_batch_end(self, batch, logs=None):
        if batch == self.batch:
            self.model.stop_training = True


def test_callback_may_stop_inside_an_epoch():
    _, (_, ours) = assert_alike(watch=lambda: [StopAt(2), Recorder()], epochs=3)
    assert [call[1] for call in ours.calls if call[0] == "train_batch_end"] == [0, 1, 2]
    assert [call[0] for call in ours.calls[-3:]] == ["test_end", "epoch_end", "train_end"]


# -- with a run directory ----------------------------------------------------------------------------------------------


def record(model_dir):
    return json.loads((model_dir / "run.json").read_text())


@pytest.fixture(scope="module")
def finished_fit(tmp_path_factory):
    model_dir = tmp_path_factory.mktemp("fit") / "run"
    return model_dir, *our_fit(dense_classifier(), epochs=3, model_dir=model_dir)


def test_run_directory_is_complete(finished_fit):
    model_dir, model, _ = finished_fit
    names = {path.name for path in model_dir.iterdir()}
    assert {"config.yaml", "run.json", "checkpoints", "train", "validation", "history.csv", "export"} <= names
    found = record(model_dir)
    assert (found["status"], found["step"], found["epoch"]) == ("finished", 3 * STEPS, 3)
    with (model_dir / "history.csv").open() as file:
        assert [row["step"] for row in csv.DictReader(file)] == ["6", "12", "18"]
    exported = keras.saving.load_model(model_dir / "export" / "model.keras")
    np.testing.assert_allclose(exported.predict(X, verbose=0), model.predict(X, verbose=0), rtol=1e-5)


def same(model, other):
    return all(np.array_equal(a, b) for a, b in zip(model.get_weights(), other.get_weights(), strict=True))


def test_finished_run_again_does_nothing(finished_fit, no_export):
    model_dir, model, before = finished_fit
    digest = record(model_dir)["digest"]
    again, history = our_fit(dense_classifier(), epochs=3, model_dir=model_dir)
    assert (history.epoch, history.history) == (before.epoch, before.history)
    assert same(again, model)
    assert record(model_dir)["digest"] == digest


@pytest.mark.full
def test_stopped_run_again_does_nothing(tmp_path, no_export):
    stop = {"monitor": "loss", "patience": 0, "min_delta": 10, "restore_best_weights": True}
    model, history = our_fit(
        dense_classifier(), epochs=9, model_dir=tmp_path / "run", callbacks=[callbacks.EarlyStopping(**stop)]
    )
    digest = record(tmp_path / "run")["digest"]
    again, nothing = our_fit(
        dense_classifier(), epochs=9, model_dir=tmp_path / "run", callbacks=[callbacks.EarlyStopping(**stop)]
    )
    assert (history.epoch, nothing.epoch) == ([0, 1], [0, 1])
    assert same(again, model)
    assert record(tmp_path / "run")["digest"] == digest


@pytest.mark.full
def test_one_shot_validation_data(tmp_path):
    _, history = our_fit(dense_classifier(), validation_data=iter([TEST]), epochs=1, model_dir=tmp_path / "run")
    assert history.history["val_loss"]
    assert record(tmp_path / "run")["status"] == "finished"


def test_without_directory_nothing_is_written(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    our_fit(dense_classifier(), epochs=1)
    assert not list(tmp_path.iterdir())


@pytest.mark.full
def test_order_of_samples_follows_the_seed():
    def losses(seed):
        return es.fit(dense_classifier(), (X, Y), epochs=2, batch_size=8, seed=seed, verbose=False).history["loss"]

    first = losses(1)
    assert losses(1) == first
    assert losses(2) != first


# -- what cannot be ----------------------------------------------------------------------------------------------------


def test_bad_requests():
    uncompiled = keras.Sequential([keras.Input((4,)), layers.Dense(3)])
    with raises_problem(key="model", received=uncompiled.name, reason="is not compiled"):
        es.fit(uncompiled, (X, Y))
    with raises_problem(key="steps_per_epoch", received=0):
        es.fit(dense_classifier(), (X, Y), steps_per_epoch=0)
    with raises_problem(key="y", reason="the labels"):
        es.fit(dense_classifier(), (X, Y + 3), verbose=False)
