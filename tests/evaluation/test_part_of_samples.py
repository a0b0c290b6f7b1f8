"""An evaluation of a part of the data says so, and is not compared with the whole."""

import json

import keras
import numpy as np
import pytest

from everstep.data import DataConfig, make_stream
from everstep.evaluation import evaluate_samples
from everstep.report.run_data import headline, read_runs
from everstep.report.sample_comparison import compare
from everstep.task import CompiledTask

pytestmark = pytest.mark.slow

X = np.arange(15, dtype="float32").reshape(15, 1)


def evaluated(folder, most):
    model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    data = make_stream((X, X), DataConfig(global_batch_size=4, is_training=False), training=False, seed=0)
    evaluate_samples(CompiledTask(model), model, data, folder / "reports", "validation", most=most)
    return json.loads((folder / "reports" / "validation.json").read_text())


def test_a_part_is_labelled_and_not_compared_with_the_whole(tmp_path):
    part, whole = evaluated(tmp_path / "part", 5), evaluated(tmp_path / "whole", None)
    assert (part["rows"], part["part_of"]) == (5, 15)
    assert "part_of" not in whole
    assert {figure.split for figure in headline(None, [part, whole])} == {"validation", "validation, 5 of 15 samples"}
    one, other = read_runs([tmp_path / "part", tmp_path / "whole"])
    assert one.as_data()["splits"][0]["split"] == "validation, 5 of 15 samples"
    assert compare(one, other, 1) == []
    assert len(compare(one, one, 1)) == 1


@pytest.mark.parametrize("most", [15, 20])
def test_as_many_samples_as_there_are_is_the_whole(tmp_path, most):
    assert "part_of" not in evaluated(tmp_path, most)
