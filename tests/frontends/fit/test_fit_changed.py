"""`everstep.fit` in a directory that another compiled model was trained in: refused by name, unless allowed."""

import json
import subprocess
import sys
import traceback
from pathlib import Path

import keras
import numpy as np
import pytest
from keras import callbacks, layers

import everstep as es
from everstep.checkpoint.orbax import OrbaxCheckpointer
from everstep.config import dialect
from everstep.errors import UsageError
from everstep.run.resume_checks import ChangeRefused
from everstep.task.description import describe
from everstep.testing.problems import raises_problem

pytestmark = [pytest.mark.backend, pytest.mark.usefixtures("no_export")]

X = np.random.default_rng(0).normal(size=(16, 3)).astype("float32")
Y = X[:, :1]
RATE, STORED_RATE = "optimizer.learning_rate", "task.optimizer.learning_rate"


def dropout_model(rate=0.001, beta=0.9, dropout=0.1, loss="mse", units=1, **compiled):
    keras.utils.set_random_seed(0)
    model = keras.Sequential([keras.Input((3,)), layers.Dense(units), layers.Dropout(dropout)])
    model.compile(keras.optimizers.Adam(rate, beta_1=beta), loss, **compiled)
    return model


def fit(model, model_dir, epochs=1, **kwargs):
    return es.fit(model, (X, Y), epochs=epochs, batch_size=8, model_dir=model_dir, verbose=False, **kwargs)


def files(model_dir):
    return {path: path.read_bytes() for path in Path(model_dir).rglob("*") if path.is_file()}


def listed(error):
    """Returns the changes that a refusal names."""
    return list(map(str, error.value.problems[:-1]))


def saved_rate(model_dir):
    """Returns the learning rate in the newest checkpoint."""
    return float(OrbaxCheckpointer(model_dir / "checkpoints").restore()[0]["optimizer/learning_rate"])


# -- refused -----------------------------------------------------------------------------------------------------------


def test_changed_arithmetic_is_refused(tmp_path):
    """Each change is named, and every byte stays."""
    fit(dropout_model(), tmp_path / "run")
    before = files(tmp_path / "run")
    for changed, lines in (
        ({"rate": 0.1}, [f"{RATE}: 0.001 -> 0.1"]),
        ({"beta": 0.5}, ["optimizer.beta_1: 0.9 -> 0.5"]),
        ({"dropout": 0.7}, ["model.layers.dropout: rate 0.1 -> 0.7"]),
        ({"loss": "mae"}, ["loss: mse -> mae"]),
        ({"loss": keras.losses.Huber(2.0, "sum")}, ["loss: mse -> 'Huber(delta=2.0, reduction=sum)'"]),
        ({"loss_weights": 3.0}, ["loss_weights: '' -> '3.0'"]),
    ):
        with pytest.raises(UsageError) as error:
            fit(dropout_model(**changed), tmp_path / "run", epochs=2)
        assert listed(error) == lines
    assert files(tmp_path / "run") == before
    assert f'allow_change=["{RATE}"]' in refusal(dropout_model(rate=0.1), tmp_path / "run")


def test_arguments_are_named_as_the_user_knows_them(tmp_path):
    es.fit(dropout_model(), X, Y, batch_size=8, seed=1, model_dir=tmp_path / "run", verbose=0)
    changed = {"batch_size": 4, "seed": 2, "shuffle": False, "class_weight": {0: 2.0}}
    given = {"batch_size": 8, "seed": 1, **changed, "epochs": 2, "model_dir": tmp_path / "run", "verbose": 0}
    with pytest.raises(ChangeRefused) as error:
        es.fit(dropout_model(), X, Y, **given)
    assert set(error.value.keys) == {*changed, "data"}, "weights of classes are another kind of stream"
    remedy = str(error.value.problems[-1])
    assert "--allow-change" not in remedy
    assert not [part for part in ("task.", "trainer.", "runtime.") if part in str(error.value)]
    allowed = json.loads(remedy.rpartition("allow_change=")[2])
    assert es.fit(dropout_model(), X, Y, **given, allow_change=allowed).epoch[-1] == 1


def refusal(model, model_dir):
    with pytest.raises(UsageError) as error:
        fit(model, model_dir, epochs=2)
    return str(error.value)


def test_other_optimizers_schedules_and_graphs(tmp_path):
    def graph(units=2, factor=2.0, swapped=False, decay=10):
        inputs = keras.Input((3,))
        hidden = layers.Dense(units, kernel_regularizer="l2")(inputs)
        ends = [layers.Dense(1)(hidden * factor), layers.Dense(1)(hidden)]
        model = keras.Model(inputs, layers.Subtract()(ends[::-1] if swapped else ends))
        rate = keras.optimizers.schedules.CosineDecay(0.1, decay)
        model.compile(keras.optimizers.SGD(rate, momentum=0.5), "mse")
        return model

    fit(graph(), tmp_path / "run")
    assert f"{RATE}.decay_steps: 10 -> 20" in refusal(graph(decay=20), tmp_path / "run")
    assert "model.layers.multiply: " in refusal(graph(factor=3.0), tmp_path / "run")
    assert "model.layers.dense_1: " in refusal(graph(swapped=True), tmp_path / "run")
    assert "model.layers.dense: units 2 -> 4\n" in refusal(graph(units=4), tmp_path / "run")
    with pytest.raises(ChangeRefused) as error:
        fit(dropout_model(), tmp_path / "run", epochs=2)
    refused = listed(error)
    assert "optimizer.class: SGD -> Adam" in refused
    assert "optimizer.momentum: 0.5 -> (absent)" in refused
    assert any(line.startswith("model.type: Functional") for line in refused)
    assert str(error.value).splitlines()[:5] == refused[:5], "the message shows the first ones"
    assert f"\nand {len(refused) - 5} more\n" in str(error.value)
    assert fit(graph(), tmp_path / "run", epochs=2).epoch == [0, 1]


def test_what_cannot_be_loaded_is_not_allowed(tmp_path):
    """The first remedy is another directory; following any remedy leads on. Callbacks are told in the same message."""
    fit(dropout_model(), tmp_path / "run")
    before = files(tmp_path / "run")
    with pytest.raises(ChangeRefused) as error:
        fit(dropout_model(units=7), tmp_path / "run", epochs=2, callbacks=[keras.callbacks.EarlyStopping("loss")])
    *changes, last = str(error.value).splitlines()
    assert changes == [
        "model.layers.dense: units 1 -> 7",
        "callbacks: not those that the run was saved with (unexpected: EarlyStopping)",
    ]
    assert last.endswith(
        "has saved does not fit this call: use another directory for a new run, or restore the former values"
    )
    assert files(tmp_path / "run") == before


def test_a_refusal_is_one_error(tmp_path):
    """No error of another layer, with other names of the keys, is shown beside it."""
    fit(dropout_model(), tmp_path / "run")
    with pytest.raises(ChangeRefused) as error:
        fit(dropout_model(rate=0.5), tmp_path / "run", epochs=2)
    shown = "".join(traceback.format_exception(error.value))
    assert shown.count("ChangeRefused") == 1
    assert "task.optimizer" not in shown
    assert "use another directory for a new run, restore the former value, or allow the change: " in str(error.value)


# -- allowed -----------------------------------------------------------------------------------------------------------


def test_allowed_learning_rate_is_used(tmp_path):
    """From the first step on, in this attempt and in those after it."""
    fit(dropout_model(), tmp_path / "run")
    with raises_problem(key="allow_change", received="task.optimizer.learning_rat"):
        fit(dropout_model(rate=0.5), tmp_path / "run", epochs=2, allow_change=["task.optimizer.learning_rat"])
    model = dropout_model(rate=0.5)
    weights = dropout_model().get_weights()[0]
    fit(model, tmp_path / "run", epochs=2, allow_change=[RATE])
    assert np.abs(model.get_weights()[0] - weights).max() > 0.4
    assert saved_rate(tmp_path / "run") == 0.5
    attempts = json.loads((tmp_path / "run" / "run.json").read_text())["attempts"]
    assert {"key": STORED_RATE, "old": 0.001, "new": 0.5} in attempts[1]["changes"]
    fit(dropout_model(rate=0.5), tmp_path / "run", epochs=3)
    assert saved_rate(tmp_path / "run") == 0.5
    assert f"{RATE}: 0.5 -> 0.001" in refusal(dropout_model(), tmp_path / "run")


class Fails(callbacks.Callback):
    def on_epoch_begin(self, epoch, logs=None):
        raise RuntimeError("no more")


class Passes(callbacks.Callback):
    """Has the name of the one that fails: a run resumes with the callbacks it was started with."""


Passes.__name__ = "Fails"


def test_allowed_learning_rate_outlives_an_attempt_without_a_save(tmp_path):
    """What counts is the rate that the checkpoint was trained with, not the one that was passed to the last attempt."""
    fit(dropout_model(), tmp_path / "run", callbacks=[Passes()])
    with pytest.raises(RuntimeError, match="no more"):
        fit(dropout_model(rate=0.5), tmp_path / "run", epochs=2, allow_change=[STORED_RATE], callbacks=[Fails()])
    assert saved_rate(tmp_path / "run") == pytest.approx(0.001)
    fit(dropout_model(rate=0.5), tmp_path / "run", epochs=2, allow_change=[RATE], callbacks=[Passes()])
    assert saved_rate(tmp_path / "run") == 0.5


# -- the same program again --------------------------------------------------------------------------------------------


@pytest.mark.full
def test_falling_learning_rate_is_no_change(tmp_path):
    """What training has made of the rate is state; in a new model, and in the one that was trained."""

    def falling():
        return [callbacks.LearningRateScheduler(lambda epoch, rate: rate * 0.5)]

    model = dropout_model(rate=0.08)
    fit(model, tmp_path / "run", callbacks=falling())
    fit(dropout_model(rate=0.08), tmp_path / "run", epochs=2, callbacks=falling())
    fit(model, tmp_path / "run", epochs=3, callbacks=falling())
    assert saved_rate(tmp_path / "run") == pytest.approx(0.01)
    assert float(keras.ops.convert_to_numpy(model.optimizer.learning_rate)) == pytest.approx(0.01)
    model.optimizer.learning_rate = 0.3
    assert f"{RATE}: 0.08 -> 0.3" in refusal(model, tmp_path / "run")
    fit(model, tmp_path / "run", epochs=4, callbacks=falling(), allow_change=[RATE])
    assert saved_rate(tmp_path / "run") == pytest.approx(0.15)


def odd():
    """A model of all that has no name, or another one each time."""

    def error(y, y_pred):
        return keras.ops.mean((y - y_pred) ** 2, axis=-1)

    class Scale(layers.Layer):
        def __init__(self, by, rate):
            super().__init__()
            self.by, self.rate = by, rate

        def call(self, x):
            return self.by(x) * self.rate

    class Falling(keras.optimizers.schedules.LearningRateSchedule):
        def __init__(self, first):
            self.first = first

        def __call__(self, step):
            return self.first / (keras.ops.cast(step, "float32") + 1.0)

    class Odd(keras.Model):
        def __init__(self, by):
            super().__init__()
            self.scale, self.dense = Scale(by, 0.5), layers.Dense(2, activation=lambda x: x)
            self.rest = [layers.GaussianNoise(0.1), layers.Lambda(lambda x: x + 1.0)]

        def call(self, x, training=False):
            x = self.dense(self.scale(x))
            for layer in self.rest:
                x = layer(x)
            return x

    model = Odd(object.__new__(type("By", (), {"__call__": lambda self, x: x * 2.0})))
    model.compile(keras.optimizers.SGD(Falling(0.01)), error)
    return model


def test_unnamed_parts(tmp_path):
    """Lambdas, local functions, objects without a configuration; Keras numbers on and on, and builds what it lacks."""
    model = odd()
    fit(model, tmp_path / "run")
    fit(odd(), tmp_path / "run", epochs=2)
    fit(model, tmp_path / "run", epochs=3)
    task = dialect.load((tmp_path / "run" / "config.yaml").read_text())["task"]
    assert task["loss"] == "odd.<locals>.error"
    assert task["optimizer"]["learning_rate"] == {"class": "odd.<locals>.Falling", "first": 0.01}
    assert task["model"] == {
        "type": "odd.<locals>.Odd",
        "layers": {
            "scale": "odd.<locals>.Scale(rate=0.5)",
            "dense": "Dense(activation=odd.<locals>.Odd.__init__.<locals>.<lambda>, units=2, use_bias=True)",
            "gaussian_noise": "GaussianNoise(stddev=0.1)",
            "lambda": "Lambda(arguments={}, function=odd.<locals>.Odd.__init__.<locals>.<lambda>)",
        },
        "optimizers": {},
    }


def described_by(model):
    return json.dumps(describe(model).__dict__, default=lambda config: config.as_dict(), sort_keys=True)


def everything():
    """One of each kind that prints differently in another process."""
    inputs = keras.Input((8, 4))
    x = layers.Bidirectional(layers.LSTM(2, return_sequences=True, seed=None))(inputs)
    x = layers.MultiHeadAttention(2, 2, dropout=0.1)(x, x)
    x = keras.Sequential([layers.Dense(3, keras.activations.relu), layers.BatchNormalization()])(x)
    x = layers.RandomRotation(0.1)(keras.ops.reshape(x, (-1, 8, 3, 1)))
    x = layers.Dense(2, activation=lambda x: x, kernel_initializer=keras.initializers.Constant(X[0, 0]))(x[:, 0, 0])
    model = keras.Model(inputs, {"out": layers.Normalization(mean=X[:, :2].mean(0), variance=X[0, :2])(x)})
    inner = keras.optimizers.Adam(0.1, name=None)
    losses = {"out": keras.losses.SparseCategoricalCrossentropy(from_logits=True)}
    model.compile(keras.optimizers.LossScaleOptimizer(inner), losses, loss_weights={"out": 0.5})
    return model


@pytest.mark.full
def test_another_process_says_the_same():
    """This one has made layers before, so that Keras gives other names."""
    layers.Dense(1), layers.LSTM(1), keras.Sequential()
    code = "from test_fit_changed import *; print(described_by(everything())); print(described_by(odd()))"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=Path(__file__).parent, capture_output=True, text=True, timeout=600
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-2:] == [described_by(everything()), described_by(odd())]
    assert "0x" not in done.stdout
    assert '"inner_optimizer": {"amsgrad": false' in done.stdout


def test_large_models_are_described_by_a_digest():
    def deep(rate=0.1, last=0.1):
        model = keras.Sequential([layers.Dropout(rate), *(layers.Dropout(last) for _ in range(150))])
        model.compile("sgd", "mse")
        return describe(model).model.as_dict()

    assert deep() == deep()
    assert deep() != deep(last=0.2)
    assert len(json.dumps(deep())) < 300
    keras.utils.set_random_seed(0)  # which does not make Keras forget TensorFlow: see tests/children/sitecustomize.py
    wide = keras.Sequential([layers.StringLookup(vocabulary=WORDS)])
    wide.compile("sgd", "mse")
    assert len(describe(wide).model.layers["string_lookup"]) < 400


WORDS = [f"word {number}" for number in range(2000)]


def test_large_loss_is_no_alarm(tmp_path):
    """A regression on large numbers: its loss is what it is."""
    model = dropout_model()
    history = es.fit(model, (X, Y * 1e6), epochs=1, batch_size=8, model_dir=tmp_path / "run", verbose=False)
    assert history.history["loss"][0] > 1e9
    trainer = dialect.load((tmp_path / "run" / "config.yaml").read_text())["trainer"]
    assert trainer["loss_upper_bound"] == float("inf")
