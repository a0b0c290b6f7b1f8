"""A run directory in a folder of training data is refused before anything is written."""

from pathlib import Path

import keras
import numpy as np
import pytest
from PIL import Image

import everstep as es
from everstep.data import ParquetSource
from everstep.data.images import ImageDataConfig, ImageSource
from everstep.frontends.fit.data_folders import require_no_data
from everstep.testing.problems import raises_problem


@pytest.fixture
def photos(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("cats", "dogs"):
        Path("photos", name).mkdir(parents=True)
        Image.fromarray(np.zeros((8, 8, 3), np.uint8)).save(f"photos/{name}/1.png")
    return tmp_path / "photos"


def images(**config):
    return ImageSource(ImageDataConfig(size=8, **config))


def test_the_folder_that_is_read_and_what_is_in_it(photos):
    model = keras.Sequential([keras.Input((8, 8, 3)), keras.layers.Flatten(), keras.layers.Dense(2)])
    model.compile("sgd", "sparse_categorical_crossentropy")
    for place, reason in (("photos", "is the folder that the data is read"), ("photos/runs/a", "is in the folder")):
        with raises_problem(key="model_dir", received=place, reason=reason, remedy="name another directory"):
            es.fit(model, images(input_path="photos"), verbose=0, model_dir=place)
    assert sorted(path.name for path in photos.iterdir()) == ["cats", "dogs"]
    assert len(images(input_path="photos")) == 2, "it can still be read"


def test_data_of_other_kinds(photos):
    loaded = keras.utils.image_dataset_from_directory("photos", image_size=(8, 8), verbose=False)
    Path("table").mkdir()
    Path("table/rows.csv").write_text("image,label\n../photos/cats/1.png,cats\n")
    for source, place in ((loaded, "photos/run"), (images(input_path="table/rows.csv"), "table")):
        with raises_problem(key="model_dir", received=place):
            require_no_data(place, source)
        require_no_data("runs/new", source)
    require_no_data("table/run", images(input_path="table/rows.csv"))


def test_rows_in_parquet(tmp_path):
    parquet = pytest.importorskip("pyarrow.parquet")
    table = pytest.importorskip("pyarrow").table({"x": [1.0, 2.0]})
    parquet.write_table(table, tmp_path / "rows.parquet")
    with raises_problem(key="model_dir", reason="holds the data: 'rows.parquet' is read"):
        require_no_data(tmp_path, ParquetSource(str(tmp_path / "rows.parquet")))


def test_a_folder_that_looks_like_data_is_refused_for_arrays_too(photos):
    with raises_problem(key="model_dir", received="photos", reason="'cats' and 'dogs' hold images"):
        require_no_data("photos", np.zeros((4, 2)))
    photos.rename("train")
    with raises_problem(key="model_dir", reason="'train/cats' and 'train/dogs' hold images"):
        require_no_data(".", np.zeros((4, 2)))


def test_other_directories_are_accepted(photos):
    Path("mine/plots").mkdir(parents=True)
    Path("mine/notes.md").touch()
    Path("mine/plots/curve.png").touch()
    (photos / "run.json").touch()
    for place in ("mine", "new", photos, None, ""):
        require_no_data(place, np.zeros((4, 2)), None)
