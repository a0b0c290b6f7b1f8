"""Names of classes and samples: where data has them, streams tell them, as long as the order is known."""

import types

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

from everstep.data import DataConfig, LimitedStream, MappedStream, ParquetSource, class_names, left_out, make_stream
from everstep.data.images import ImageDataConfig, ImageSource
from everstep.data.names import file_names

CONFIG = DataConfig(global_batch_size=4)


def read(source, training=False):
    return make_stream(source, CONFIG, training=training, seed=0)


@pytest.fixture
def folder(tmp_path):
    for name in ("cat", "fish, small"):
        for number in range(6):
            path = tmp_path / "pets" / name / f"{number}.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray(np.full((4, 4), 20 * number, np.uint8)).save(path)
    return tmp_path / "pets"


def images(folder, **settings):
    return ImageSource(ImageDataConfig(input_path=str(folder), size=4, channels=1, workers=0, **settings))


def test_images_are_called_by_their_files(folder):
    stream = read(images(folder))
    assert stream.classes == ["cat", "fish, small"]
    assert stream.sample_ids()[::6] == ["cat/0.png", "fish, small/0.png"]
    assert read(images(folder), training=True).sample_ids() is None  # shuffled


def test_a_part_of_the_images_has_the_names_of_that_part(folder):
    source = images(folder, validation_split=0.5)
    assert left_out(source) is source
    assert left_out(images(folder)) is left_out([1]) is None
    evaluated = read(source).sample_ids()
    assert 0 < len(evaluated) < 12
    labels = np.concatenate([labels for _, labels in read(source)])
    assert [name.partition("/")[0] for name in evaluated] == [["cat", "fish, small"][label] for label in labels]


def test_streams_around_others_have_their_names(folder):
    stream = LimitedStream(MappedStream(read(images(folder)), lambda batch: batch), 2)
    assert stream.classes == ["cat", "fish, small"]
    assert stream.sample_ids()[0] == "cat/0.png"


def test_rows_of_parquet_files_are_called_by_the_column_id(tmp_path):
    rows = {"id": ["a", "b", "c", "d", "e"], "x": [0.0, 1, 2, 3, 4], "y": [0, 1, 0, 1, 0]}
    pq.write_table(pa.table(rows), tmp_path / "rows.parquet", row_group_size=2)
    source = ParquetSource(str(tmp_path / "rows.parquet"), x="x", y="y")
    assert read(source).sample_ids() == rows["id"]
    assert read(source, training=True).sample_ids() is None
    pq.write_table(pa.table({"x": rows["x"], "y": rows["y"]}), tmp_path / "unnamed.parquet")
    assert read(ParquetSource(str(tmp_path / "unnamed.parquet"), x="x", y="y")).sample_ids() is None


class Photos:
    """As `torchvision.datasets.ImageFolder`."""

    classes = ("cat", "dog")
    samples = [(f"/photos/{name}/{number}.png", label) for label, name in enumerate(classes) for number in range(3)]

    def __len__(self):
        return len(self.samples)

    def __getitem__(self, index):
        return np.float32(index), self.samples[index][1]


def test_datasets_by_index():
    stream = read(Photos())
    assert (stream.classes, stream.sample_ids()[3]) == (["cat", "dog"], "dog/0.png")
    assert read(Photos(), training=True).sample_ids() is None


def test_where_names_are_found():
    named = types.SimpleNamespace
    assert class_names(named(class_names=["a", "b"])) == ["a", "b"]
    assert class_names(named(dataset=named(dataset=named(classes=["a"])))) == ["a"]
    label = named(names=["no", "yes"])
    assert class_names(named(features={"text": named(), "label": label})) == ["no", "yes"]
    assert class_names(named(features={"one": label, "other": label})) == []
    for other in (named(classes=3), named(classes="ab"), named(classes=[1, 2]), np.zeros(3), None):
        assert class_names(other) == []
    assert file_names(named(file_paths=["/d/a/1.png", "/d/b/1.png"])) == ["a/1.png", "b/1.png"]
    assert file_names(named(samples=[(1, 2)])) is file_names(named()) is None


@pytest.mark.backend
@pytest.mark.daily("tensorflow")
def test_keras_loaders(folder):
    keras = pytest.importorskip("keras")
    given = {"image_size": (4, 4), "verbose": False, "seed": 0, "batch_size": 4}
    loaded = keras.utils.image_dataset_from_directory(str(folder), shuffle=False, **given)
    assert read(loaded).classes == ["cat", "fish, small"]
    assert read(loaded).sample_ids()[6] == "fish, small/0.png"
    assert read(keras.utils.image_dataset_from_directory(str(folder), **given)).sample_ids() is None  # shuffled
    assert read(loaded.map(lambda x, y: (x, y))).classes == []
