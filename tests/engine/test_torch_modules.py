"""PyTorch modules inside a Keras model: buffers, which a checkpoint does not contain, are refused."""

import keras
import numpy as np
import pytest

import everstep as es
from everstep.testing.problems import raises_problem

pytestmark = pytest.mark.backend

if keras.backend.backend() != "torch":
    pytest.skip("only PyTorch has its modules", allow_module_level=True)

X = np.random.default_rng(0).normal(size=(32, 4)).astype("float32")


def wrapped(*more):
    import torch

    module = torch.nn.Sequential(torch.nn.Linear(4, 4), *more)
    model = keras.Sequential([keras.Input((4,)), keras.layers.TorchModuleWrapper(module, output_shape=(None, 4))])
    model.compile("sgd", "mse")
    return model


def test_weights_are_trained_and_saved(tmp_path):
    history = es.fit(wrapped(), X, X, epochs=2, verbose=0, model_dir=tmp_path / "run")
    assert history.history["loss"][1] < history.history["loss"][0]


def test_buffers_are_refused(tmp_path):
    import torch

    model = wrapped(torch.nn.BatchNorm1d(4))
    with raises_problem(key=f"layer {model.layers[0].name!r}", reason="1.running_mean", remedy="use Keras's layers"):
        es.fit(model, X, X, verbose=0, model_dir=tmp_path / "run")
    assert not (tmp_path / "run").exists()
