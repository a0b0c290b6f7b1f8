"""Data that has a configuration: `fit` reads it as that says, and refuses what contradicts its arguments."""

import keras
import numpy as np
import pytest
from PIL import Image

import everstep as es
from everstep.config import load_file
from everstep.data import DataConfig
from everstep.data.images import ImageDataConfig, ImageSource
from everstep.testing.problems import raises_problem

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("no_export")]

COUNT = 21


@pytest.fixture(scope="module")
def photos(tmp_path_factory):
    folder = tmp_path_factory.mktemp("photos")
    for name, grey in (("dark", 20), ("light", 220), ("mid", 120)):
        (folder / name).mkdir()
        for number in range(COUNT // 3):
            Image.fromarray(np.full((4, 4, 3), grey + number, np.uint8)).save(folder / name / f"{number}.png")
    return str(folder)


@pytest.fixture
def fit(photos, tmp_path):
    def call(config=None, validation=None, **given):
        keras.utils.set_random_seed(0)
        model = keras.Sequential([keras.Input((4, 4, 3)), keras.layers.Flatten(), keras.layers.Dense(3, "softmax")])
        model.compile("sgd", "sparse_categorical_crossentropy")
        if validation is not None:
            given["validation_data"] = ImageSource(ImageDataConfig(input_path=photos, size=4, **validation))
        source = ImageSource(ImageDataConfig(input_path=photos, size=4, workers=0, **(config or {})))
        es.fit(model, source, **{"verbose": 0, "report": False, "model_dir": tmp_path / "run", **given})
        return load_file(tmp_path / "run" / "config.yaml")["task"]

    return call


@pytest.mark.parametrize(
    ("config", "given", "size"),
    [
        ({"global_batch_size": 8}, {}, 8),
        ({}, {"batch_size": 8}, 8),
        ({}, {}, 32),
        ({"global_batch_size": 8}, {"batch_size": 8}, 8),
    ],
)
def test_the_batch_size(fit, tmp_path, config, given, size):
    task = fit(config, **given)
    assert task["train_data"]["global_batch_size"] == size
    assert es.load(tmp_path / "run").record["step"] == -(-COUNT // size)


def test_the_other_settings(fit, tmp_path):
    task = fit({"global_batch_size": 4, "limit_batches": 3, "seed": 5, "drop_remainder": True}, {"limit_batches": 1})
    data = task["train_data"]
    assert [data[name] for name in ("limit_batches", "seed", "drop_remainder")] == [3, 5, True]
    assert es.load(tmp_path / "run").record["step"] == 3
    assert task["validation_data"]["limit_batches"] == 1


def test_the_last_batch_is_dropped_where_that_is_configured(fit, tmp_path):
    fit({"global_batch_size": 8, "drop_remainder": True})
    assert es.load(tmp_path / "run").record["step"] == COUNT // 8


def test_validation_data_has_a_batch_size_of_its_own(fit):
    task = fit({"global_batch_size": 8}, {"global_batch_size": 5})
    assert task["validation_data"]["global_batch_size"] == 5


def test_the_part_that_is_left_out(fit):
    task = fit({"global_batch_size": 4, "validation_split": 0.4, "drop_remainder": True, "is_training": True})
    assert (task["validation_data"]["drop_remainder"], task["validation_data"]["global_batch_size"]) == (False, 4)


@pytest.mark.parametrize(
    ("config", "given", "fields"),
    [
        ({"global_batch_size": 8}, {"batch_size": 4}, {"key": "batch_size", "received": 4, "reason": "batch_size=8"}),
        ({"is_training": False}, {}, {"key": "x.is_training", "received": False}),
        ({"repeat": False}, {}, {"key": "x.repeat", "received": False}),
    ],
)
def test_contradictions(fit, config, given, fields, tmp_path):
    with raises_problem(**fields):
        fit(config, **given)
    assert not (tmp_path / "run").exists()


def test_contradictions_of_validation_data(fit):
    with raises_problem(key="validation_batch_size", received=4, reason="global_batch_size=8"):
        fit(None, {"global_batch_size": 8}, validation_batch_size=4)
    with raises_problem(key="validation_data.is_training", received=True):
        fit(None, {"is_training": True})


def test_batch_sizes_that_data_does_not_use(tmp_path):
    grain = pytest.importorskip("grain")
    x = np.zeros((16, 2), "float32")
    batches = grain.MapDataset.source([(x[:4], x[:4, :1])] * 4)
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    with pytest.warns(UserWarning, match="batch_size=8 is not used: the .*MapDataset makes its own batches"):
        es.fit(model, batches, batch_size=8, verbose=0)
    with pytest.warns(UserWarning, match="validation_batch_size=8 is not used: the function"):
        es.fit(model, x, x[:, :1], validation_data=lambda: iter([(x, x[:, :1])]), validation_batch_size=8, verbose=0)


NAMES = {
    "photos": "ImageSource",
    "table.csv": "read_csv",
    "rows.parquet": "ParquetSource",
    "arrays.npz": "numpy.load",
    "some.tfrecord": "InputReader",
    "some.bin": "pass arrays",
    "missing.csv": "no such file or folder is in",
}


@pytest.mark.parametrize(("name", "remedy"), NAMES.items())
def test_names_of_data(name, remedy, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "photos").mkdir()
    if name not in ("photos", "missing.csv"):
        (tmp_path / name).touch()
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    x = np.zeros((4, 2))
    for key, given in {"x": {"x": name}, "validation_data": {"x": x, "y": x[:, :1], "validation_data": name}}.items():
        with raises_problem(key=key, received=name, reason="is the name of data", remedy=remedy):
            es.fit(model, **given, verbose=0)


def test_configurations_are_no_data():
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    for config, remedy in (
        (ImageDataConfig(input_path="photos"), r"ImageSource\(config\)"),
        (DataConfig(), "InputReader"),
    ):
        with raises_problem(key="x", reason=f"is {type(config).__name__}", remedy=remedy):
            es.fit(model, config, verbose=0)
    with raises_problem(key="config", received="photos", remedy=r"ImageDataConfig\(input_path='photos'"):
        ImageSource("photos")
