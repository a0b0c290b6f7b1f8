"""`everstep.fit` takes every argument of `model.fit`: the same numbers, or a refusal that names it."""

import keras
import numpy as np
import pytest
from keras import callbacks, layers

import everstep as es

pytestmark = pytest.mark.backend

RNG = np.random.default_rng(0)
X = RNG.normal(size=(48, 4)).astype("float32")
Y = (X.sum(axis=1) > 0).astype("int32") + (X[:, 0] > 1)
TEST = X[:16], Y[:16]
WEIGHT = np.linspace(0.1, 2, 48).astype("float32")


def dense_classifier():
    keras.utils.set_random_seed(0)
    model = keras.Sequential([keras.Input((4,)), layers.Dense(3, "softmax")])
    loss = "sparse_categorical_crossentropy"
    model.compile(keras.optimizers.SGD(0.1), loss, weighted_metrics=["accuracy"])
    return model


@pytest.mark.parametrize(
    "given",
    [
        {"validation_split": 0.3, "sample_weight": WEIGHT, "validation_freq": 2, "initial_epoch": 1},
        {
            "validation_data": [*TEST, WEIGHT[:16]],
            "validation_split": 0.5,
            "validation_batch_size": 5,
            "validation_steps": 2,
            "validation_freq": [1, 3],
        },
        {"class_weight": {0: 0.5, 2: 3.0}, "steps_per_epoch": 3, "batch_size": None},
        *(
            pytest.param(given, marks=pytest.mark.full)
            for given in [
                {"validation_split": 0.3},
                {"steps_per_epoch": 3, "validation_data": TEST, "validation_steps": 3, "batch_size": None},
                {"sample_weight": WEIGHT},
                {"class_weight": {0: 0.5, 2: 3.0}},
                {"initial_epoch": 2},
                {"initial_epoch": 3},
            ]
        ),
    ],
    ids=lambda given: "-".join(given),
)
def test_same_history(given):
    given = {"batch_size": 8, "epochs": 3, "shuffle": False, "verbose": 0, **given}
    model, twin = dense_classifier(), dense_classifier()
    wanted, found = model.fit(X, Y, **given), es.fit(twin, X, Y, **given)
    assert isinstance(found, callbacks.History)
    assert (found.epoch, found.params, found.model) == (wanted.epoch, wanted.params, twin)
    assert list(found.history) == list(wanted.history)
    for name, values in wanted.history.items():
        np.testing.assert_allclose(found.history[name], values, rtol=1e-5, err_msg=name)
    np.testing.assert_allclose(twin.get_weights()[0], model.get_weights()[0], rtol=1e-4, atol=1e-6)


def test_several_inputs_and_outputs():
    """As lists and as dicts; one array of weights serves all outputs."""

    def make():
        keras.utils.set_random_seed(0)
        inputs = [keras.Input((2,), name="left"), keras.Input((2,), name="right")]
        hidden = layers.Dense(4)(layers.Concatenate()(inputs))
        model = keras.Model(inputs, {"a": layers.Dense(1, name="a")(hidden), "b": layers.Dense(1, name="b")(hidden)})
        model.compile("sgd", "mse")
        return model

    sums = X.sum(axis=1, keepdims=True)
    given = {"batch_size": 16, "shuffle": False, "verbose": 0, "sample_weight": WEIGHT, "validation_split": 1 / 3}
    x, y = [X[:, :2], X[:, 2:]], {"a": sums, "b": -sums}
    wanted, found = (fit(x, y, **given).history for fit in (make().fit, ours(make())))
    assert list(found) == list(wanted)
    np.testing.assert_allclose([*found.values()], [*wanted.values()], rtol=1e-5)
    named = ours(make())({"left": x[0], "right": x[1]}, y, **given).history
    assert named == found


def ours(model):
    return lambda *args, **kwargs: es.fit(model, *args, **kwargs)


@pytest.mark.full
def test_tables_and_tensors():
    pandas = pytest.importorskip("pandas")
    tables = pandas.DataFrame(X), pandas.Series(Y)
    tensors = keras.ops.convert_to_tensor(X), keras.ops.convert_to_tensor(Y)
    wanted = dense_classifier().fit(*tables, shuffle=False, verbose=0).history["loss"]
    for x, y in (tables, tensors):
        assert es.fit(dense_classifier(), x, y, shuffle=False, verbose=0).history["loss"] == pytest.approx(
            wanted, rel=1e-5
        )


@pytest.mark.full
def test_epochs_after_others_are_those_of_one_run():
    """Two calls, the second from `initial_epoch` on, see the samples in the order of one call."""
    one, two = dense_classifier(), dense_classifier()
    es.fit(one, X, Y, 8, epochs=3, verbose=0, seed=0)
    es.fit(two, X, Y, 8, epochs=1, verbose=0, seed=0)
    es.fit(two, X, Y, 8, epochs=3, initial_epoch=1, verbose=0, seed=0)
    assert np.array_equal(one.get_weights()[0], two.get_weights()[0])


def test_resumed_run_knows_its_epoch(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("everstep.run.exporting.export_all", lambda *args: [])
    given = {"batch_size": 8, "model_dir": tmp_path / "run", "verbose": 0, "validation_data": TEST}
    given |= {"validation_freq": 2}
    first = es.fit(dense_classifier(), X, Y, epochs=4, initial_epoch=2, **given)
    found = es.fit(dense_classifier(), X, Y, epochs=6, initial_epoch=5, **given)
    assert (first.epoch, found.epoch) == ([2, 3], [2, 3, 4, 5])
    assert [len(found.history[name]) for name in ("loss", "val_loss")] == [4, 2]
    again = es.fit(dense_classifier(), X, Y, epochs=6, **given)
    assert (again.epoch, again.history) == (found.epoch, found.history)
    assert capsys.readouterr() == ("", "")  # verbose=0


def test_a_line_per_epoch(capsys):
    es.fit(dense_classifier(), X, Y, epochs=2, verbose=2, validation_split=0.5)
    out, err = capsys.readouterr()
    lines = [line for line in err.splitlines() if line.startswith("Epoch ")]
    assert [line.split(" - ")[0] for line in lines] == ["Epoch 1/2", "Epoch 2/2"]
    assert all("loss: " in line and "val_accuracy: " in line for line in lines)
    assert not out
    assert "train |" not in err


# -- callbacks ---------------------------------------------------------------------------------------------------------


def keras_callbacks(folder):
    """Returns all callbacks of Keras that act on training, as a user would make them."""
    return [
        callbacks.ModelCheckpoint(folder / "epoch-{epoch}.weights.h5", save_weights_only=True),
        callbacks.ModelCheckpoint(folder / "batch.weights.h5", save_weights_only=True, save_freq=4),
        callbacks.EarlyStopping("val_loss", patience=9, restore_best_weights=True),
        callbacks.ReduceLROnPlateau("val_loss", patience=1, factor=0.5, min_delta=10.0),
        callbacks.LearningRateScheduler(lambda epoch, rate: rate * 0.9),
        callbacks.CSVLogger(folder / "log.csv"),
        callbacks.TerminateOnNaN(),
        callbacks.LambdaCallback(on_epoch_end=lambda epoch, logs: logs.update(extra=float(epoch))),
        callbacks.ProgbarLogger(),
    ]


def test_callbacks_of_keras(tmp_path, caplog):
    given = {"batch_size": 8, "epochs": 3, "shuffle": False, "verbose": 0, "validation_data": TEST}
    histories = []
    for name, fit in (("theirs", dense_classifier().fit), ("ours", ours(dense_classifier()))):
        (tmp_path / name).mkdir()
        watching = keras_callbacks(tmp_path / name)
        watching = callbacks.CallbackList(watching) if name == "ours" else watching
        histories.append(fit(X, Y, callbacks=watching, **given).history)
    wanted, found = histories
    assert {"extra", "learning_rate"} <= set(found) == set(wanted)
    for name, values in wanted.items():
        np.testing.assert_allclose(found[name], values, rtol=1e-5, err_msg=name)
    files = [sorted(path.name for path in (tmp_path / name).iterdir()) for name in ("theirs", "ours")]
    assert files[0] == files[1]
    assert "running single steps: ModelCheckpoint has methods for every batch" in caplog.text


@pytest.mark.full
def test_one_callback_and_a_list_of_keras():
    stop = callbacks.EarlyStopping("loss", patience=0, min_delta=10.0)
    assert es.fit(dense_classifier(), X, Y, epochs=5, verbose=0, callbacks=stop).epoch == [0, 1]
    model, history = dense_classifier(), callbacks.History()
    listed = callbacks.CallbackList([callbacks.EarlyStopping("loss", patience=0, min_delta=10.0), history], model=model)
    assert es.fit(model, X, Y, epochs=5, verbose=0, callbacks=listed) is history


def test_tensorboard(tmp_path):
    pytest.importorskip("tensorflow")
    board = callbacks.TensorBoard(tmp_path, histogram_freq=1, write_steps_per_second=True)
    es.fit(dense_classifier(), X, Y, epochs=2, verbose=0, validation_data=TEST, callbacks=board)
    assert {path.name for path in tmp_path.iterdir()} == {"train", "validation"}
