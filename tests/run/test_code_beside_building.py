"""Git reads the version of the code in another thread, while the model is built."""

import threading

import keras
import numpy as np
import pytest

import everstep
from everstep.run import record
from everstep.run.record import read

pytestmark = pytest.mark.backend

X = np.zeros((8, 2), "float32")


class Waiting(keras.layers.Dense):
    """A layer that is built only after git has begun."""

    begun = threading.Event()

    def build(self, input_shape):
        assert self.begun.wait(60)
        super().build(input_shape)


def test_a_model_is_built_while_the_code_is_read(tmp_path, monkeypatch):
    built = threading.Event()

    def reading(path):
        Waiting.begun.set()
        assert built.wait(60)
        return {"commit": "abc", "dirty": False, "changes": None, "sources": None}, None

    monkeypatch.setattr(record, "read_code", reading)
    begin = record.Run.begin
    monkeypatch.setattr(record.Run, "begin", lambda run, *args, **options: (built.set(), begin(run, *args, **options)))
    model = keras.Sequential([Waiting(1)])
    model.compile("sgd", "mse")
    everstep.fit(model, X, X[:, :1], epochs=1, model_dir=tmp_path / "run", verbose=0, export=[])
    assert read(tmp_path / "run")["code"]["commit"] == "abc"
