"""What `everstep.fit` cannot use it refuses by the argument's name, in one line, and leaves nothing behind."""

import inspect

import keras
import numpy as np
import pytest
from keras import callbacks, layers

import everstep as es
from everstep.errors import UsageError
from everstep.frontends.fit.arguments import require_place
from everstep.testing.problems import raises_problem

X = np.random.default_rng(0).normal(size=(48, 4)).astype("float32")
Y = (X.sum(axis=1) > 0).astype("int32")
TEST = X[:16], Y[:16]
WEIGHT = np.ones(48, "float32")


@pytest.fixture(scope="module")
def model():
    model = keras.Sequential([keras.Input((4,)), layers.Dense(2, "softmax")])
    model.compile("sgd", "sparse_categorical_crossentropy")
    return model


def test_signature_is_that_of_keras():
    """In its order, with its defaults: a parameter that Keras adds fails here, and has to be taken or refused."""
    theirs = list(inspect.signature(keras.Model.fit).parameters.values())[1:]
    ours = list(inspect.signature(es.fit).parameters.values())[1:]
    assert [(p.name, p.default) for p in ours[: len(theirs)]] == [(p.name, p.default) for p in theirs]
    assert all(p.kind is p.POSITIONAL_OR_KEYWORD for p in ours[: len(theirs)])
    assert all(p.kind in (p.KEYWORD_ONLY, p.VAR_KEYWORD) for p in ours[len(theirs) :])


def batches():
    yield X[:8], Y[:8]


REFUSED = [
    ("x", {"x": None, "y": None}),
    ("y", {"y": None}),
    ("seed", {"seed": -1}),
    ("seed", {"seed": "1"}),
    ("x", {"x": X.tolist()}),
    ("workers", {"workers": 4}),
    ("data", {"data": X}),
    ("batchsize", {"batchsize": 4}),
    ("batch_size", {"batch_size": 0}),
    ("batch_size", {"batch_size": "8"}),
    ("epochs", {"epochs": True}),
    ("epochs", {"epochs": None}),
    ("initial_epoch", {"initial_epoch": -1}),
    ("steps_per_epoch", {"steps_per_epoch": 1.5}),
    ("validation_steps", {"validation_steps": 0}),
    ("validation_batch_size", {"validation_batch_size": -3}),
    ("validation_freq", {"validation_freq": 0}),
    ("validation_freq", {"validation_freq": "all"}),
    ("validation_freq", {"validation_freq": ["a"]}),
    ("verbose", {"verbose": 3}),
    ("shuffle", {"shuffle": "batch"}),
    ("validation_split", {"validation_split": 1.0}),
    ("validation_split", {"validation_split": "half"}),
    ("validation_split", {"validation_split": 0.99}),
    ("validation_split", {"x": batches, "y": None, "validation_split": 0.5}),
    ("class_weight", {"class_weight": [0.5, 2.0]}),
    ("class_weight", {"class_weight": {"cat": 1.0}}),
    ("class_weight", {"class_weight": {0: float("nan")}}),
    ("x, y", {"sample_weight": WEIGHT[:7]}),
    ("sample_weight", {"y": None, "sample_weight": WEIGHT}),
    ("sample_weight", {"x": (X, Y, WEIGHT), "y": None, "sample_weight": WEIGHT}),
    ("sample_weight", {"x": batches, "y": None, "sample_weight": WEIGHT}),
    ("y", {"x": batches}),
    ("y", {"y": batches}),
    ("y", {"x": (X, Y), "y": TEST}),
    ("callbacks", {"callbacks": [callbacks.BackupAndRestore("backup")]}),
    ("callbacks", {"callbacks": callbacks.EarlyStopping}),
    ("callbacks", {"callbacks": [1]}),
    ("model_dir", {"model_dir": 3}),
]


@pytest.mark.parametrize(("key", "given"), REFUSED)
def test_refused_by_name(model, key, given, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UsageError) as refused:
        es.fit(model, **{"x": X, "y": Y, "verbose": 0, **given})
    assert str(refused.value).startswith(f"{key}: ")
    assert "\n" not in str(refused.value)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("remedy", "given"),
    [
        ("set it on the data", {"workers": 4}),
        ("it is called x", {"data": X}),
        ("did you mean 'batch_size'", {"batchsize": 4}),
        ("validation_data=", {"x": batches}),
        ("validation_data=", {"y": batches}),
        ("validation_data=", {"x": (X, Y), "y": TEST}),
        ("np.array(x)", {"x": X.tolist()}),
    ],
)
def test_what_to_write_instead(model, remedy, given):
    with pytest.raises(UsageError) as refused:
        es.fit(model, **{"x": X, "y": Y, "verbose": 0, **given})
    assert remedy in refused.value.remedy


def test_a_directory_of_runs_is_no_directory_for_one(model, tmp_path, monkeypatch):
    (tmp_path / "first").mkdir()
    (tmp_path / "first" / "run.json").write_text("{}")
    with raises_problem(key="model_dir", received=str(tmp_path), reason="'first'", remedy="a new directory in it"):
        es.fit(model, X, Y, verbose=0, model_dir=tmp_path)
    monkeypatch.chdir(tmp_path)
    require_place("")  # keeps nothing: it is not the working directory
    assert [entry.name for entry in tmp_path.iterdir()] == ["first"]
