"""`states` of `run.json`: the digests of all checkpoints, also of those that are removed later."""

import json

import keras
import numpy as np
import pytest

import everstep
from everstep.run.record import read

pytestmark = [pytest.mark.slow, pytest.mark.backend]

X = np.random.default_rng(0).normal(size=(32, 4)).astype("float32")


def states_after(directory, epochs):
    keras.utils.set_random_seed(0)
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(2)])
    model.compile("adam", "mse")
    everstep.fit(model, X, X[:, :2], epochs=epochs, model_dir=directory, verbose=0, seed=0, export=[])
    return read(directory)["states"]


def test_digests_that_a_kill_left_unwritten_are_recorded_by_the_next_attempt(tmp_path):
    """A checkpoint is on disk a moment before the record has its digest."""
    states_after(tmp_path / "killed", epochs=2)
    path = tmp_path / "killed" / "run.json"
    record = json.loads(path.read_text())
    record["states"].clear()  # the thread that saves may be two checkpoints ahead of the record
    path.write_text(json.dumps(record))
    assert states_after(tmp_path / "killed", epochs=4) == states_after(tmp_path / "whole", epochs=4)
    assert list(read(tmp_path / "killed")["states"]) == ["1", "2", "3", "4"]
