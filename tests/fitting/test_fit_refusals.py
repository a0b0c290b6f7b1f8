"""What `everstep.fit` cannot use it refuses by the argument's name, in one line, and leaves nothing behind."""

import inspect

import keras
import numpy as np
import pytest
from keras import callbacks, layers

import everstep as es
from everstep.errors import UsageError

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


REFUSED = {
    "x: nothing to train on": {"x": None, "y": None},
    "y: missing, and the model's loss needs it": {"y": None},
    "seed: received -1, must be at least 0": {"seed": -1},
    "seed: received '1' .str., expected a whole number": {"seed": "1"},
    "x: received a list of Python numbers or lists: make an array of it, np.array.x.": {"x": X.tolist()},
    "workers: fit.. has no such argument: set it on the data": {"workers": 4},
    "data: fit.. has no such argument: it is called x": {"data": X},
    "batchsize: fit.. has no such argument: did you mean 'batch_size'": {"batchsize": 4},
    "batch_size: received 0, must be at least 1": {"batch_size": 0},
    "batch_size: received '8' .str., expected a whole number": {"batch_size": "8"},
    "epochs: received True .bool., expected a whole number": {"epochs": True},
    "epochs: received None": {"epochs": None},
    "initial_epoch: received -1, must be at least 0": {"initial_epoch": -1},
    "steps_per_epoch: received 1.5 .float., expected a whole number": {"steps_per_epoch": 1.5},
    "validation_steps: received 0, must be": {"validation_steps": 0},
    "validation_batch_size: received -3, must be": {"validation_batch_size": -3},
    "validation_freq: received 0, must be": {"validation_freq": 0},
    "validation_freq: received 'all', expected a whole number, or a list": {"validation_freq": "all"},
    "validation_freq: received 'a' .str., expected a whole number": {"validation_freq": ["a"]},
    'verbose: received 3, expected "auto", 0': {"verbose": 3},
    "shuffle: received 'batch', expected True or False": {"shuffle": "batch"},
    "validation_split: received 1.0, expected a number from 0": {"validation_split": 1.0},
    "validation_split: received 'half', expected a number": {"validation_split": "half"},
    "validation_split: received 0.99, which leaves one part of 48 samples empty": {"validation_split": 0.99},
    "validation_split: received 0.5 for a function, but only arrays": {
        "x": batches,
        "y": None,
        "validation_split": 0.5,
    },
    "class_weight: received .0.5, 2.0., expected a dict": {"class_weight": [0.5, 2.0]},
    "class_weight: received .'cat': 1.0., expected a dict": {"class_weight": {"cat": 1.0}},
    "class_weight: received .0: nan., .* with finite weights": {"class_weight": {0: float("nan")}},
    "different numbers of samples": {"sample_weight": WEIGHT[:7]},
    "sample_weight: there are no labels": {"y": None, "sample_weight": WEIGHT},
    "sample_weight: x=.x, y, weight. has weights already": {"x": (X, Y, WEIGHT), "y": None, "sample_weight": WEIGHT},
    "sample_weight: x is a function, which has to bring it": {"x": batches, "y": None, "sample_weight": WEIGHT},
    "y: x is a function, which has to bring it.*validation data goes in as validation_data=": {"x": batches},
    "y: received a function, expected arrays; validation data goes in as": {"y": batches},
    "y: received a tuple beside x=.2 arrays.*validation data goes in as": {"x": (X, Y), "y": TEST},
    "callbacks: BackupAndRestore: .*pass model_dir=": {"callbacks": [callbacks.BackupAndRestore("backup")]},
    "callbacks: received EarlyStopping, which is no .*: write EarlyStopping": {"callbacks": callbacks.EarlyStopping},
    "callbacks: received int, which is no": {"callbacks": [1]},
}


@pytest.mark.parametrize("message", REFUSED)
def test_refused_by_name(model, message, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UsageError, match=message) as refused:
        es.fit(model, **{"x": X, "y": Y, "verbose": 0, **REFUSED[message]})
    assert "\n" not in str(refused.value)
    assert not list(tmp_path.iterdir())
