"""Datasets by index: any class with `__len__` and `__getitem__`, of PyTorch, of Hugging Face."""

import random

import numpy as np
import pytest

from everstep.data import DataConfig, IterableStream, MapDatasetStream, make_stream
from everstep.data.map_dataset import stacked
from everstep.testing import streams
from everstep.testing.problems import raises_problem

SAMPLES, BATCH = 11, 3


class Numbers:
    """Samples that contain their index, and a list of the indices that were read."""

    def __init__(self, size=SAMPLES):
        self.size, self.read = size, []

    def __len__(self):
        return self.size

    def __getitem__(self, index):
        assert type(index) is int
        if index >= self.size:
            raise IndexError(index)
        self.read.append(index)
        return {"id": index, "row": (np.array([index, 10 * index], "float32"), None)}


class Noisy(Numbers):
    """Draws from the global random generators."""

    def __getitem__(self, index):
        return index, np.random.normal(), random.random()


class AtOnce(Numbers):
    """Returns a batch in one call."""

    def __getitems__(self, indices):
        self.read.append(list(indices))
        return [(index, float(index)) for index in indices]


class Samples:
    """The samples that it was created with."""

    def __init__(self, *samples):
        self.samples = samples

    def __len__(self):
        return len(self.samples)

    def __getitem__(self, index):
        return self.samples[index]


def map_streams(kind, shuffle=True, drop=False):
    return lambda repeat: MapDatasetStream(kind(), BATCH, shuffle=shuffle, seed=5, repeat=repeat, drop_remainder=drop)


def huggingface(**columns):
    datasets = pytest.importorskip("datasets")
    return datasets.Dataset.from_dict(columns)


def numbers_of_huggingface():
    return huggingface(id=list(range(SAMPLES)), row=[[n, 10.0 * n] for n in range(SAMPLES)])


def numbers_of_torch():
    torch = pytest.importorskip("torch")
    rows = torch.arange(2.0 * SAMPLES).reshape(SAMPLES, 2)
    return torch.utils.data.TensorDataset(torch.arange(SAMPLES), rows)


FACTORIES = {
    "in order": map_streams(Numbers, shuffle=False),
    "shuffled": map_streams(Numbers),
    "without remainder": map_streams(Numbers, drop=True),
    "noisy": map_streams(Noisy),
    "at once": map_streams(AtOnce),
}


@pytest.mark.parametrize("name", FACTORIES)
@pytest.mark.parametrize("check", streams.CHECKS, ids=lambda check: check.__name__)
def test_contract(name, check):
    check(FACTORIES[name])


@pytest.mark.parametrize("kind", [Numbers, AtOnce, numbers_of_huggingface, numbers_of_torch])
def test_every_sample_once(kind):
    streams.check_every_sample_once(map_streams(kind, shuffle=False), SAMPLES, shuffled=False)
    streams.check_every_sample_once(map_streams(kind), SAMPLES, shuffled=True)
    streams.check_restores_everywhere(map_streams(kind))


def test_order_is_that_of_arrays():
    config = DataConfig(global_batch_size=BATCH)
    dataset, arrays = (make_stream(s, config, training=True, seed=2) for s in (Numbers(), np.arange(SAMPLES)))
    for _ in range(7):
        assert next(dataset)["id"].tolist() == next(arrays).tolist()


def test_resuming_reads_nothing_before_the_position():
    dataset = Numbers(1000)
    stream = MapDatasetStream(dataset, 10, repeat=True)
    stream.restore({"epoch": 7, "batch": 98})
    next(stream)
    assert dataset.read == list(range(980, 990))


def test_getitems_is_called_once_per_batch():
    dataset = AtOnce()
    first = next(MapDatasetStream(dataset, 4))
    assert dataset.read == [[0, 1, 2, 3]]
    assert first[0].tolist() == [0, 1, 2, 3]


def test_getitems_must_return_every_sample():
    dataset = AtOnce()
    dataset.__class__ = type("Forgetful", (AtOnce,), {"__getitems__": lambda self, indices: [0]})
    with raises_problem(reason="Forgetful.__getitems__ returned 1 samples for 3 indices"):
        next(MapDatasetStream(dataset, 3))


def test_huggingface_returns_arrays_in_one_call(monkeypatch):
    """Its format of arrays makes Python objects of every row: it formats one row, the others are converted."""
    dataset = huggingface(text=[[1, 2, 3], [4, 5, 6], [7, 8, 9]], label=[0, 1, 2])
    calls = []
    kind = type(dataset)
    original = kind.__getitem__

    def recorded(self, keys):
        calls.append((self.format["type"], keys))
        return original(self, keys)

    monkeypatch.setattr(kind, "__getitem__", recorded)
    stream = MapDatasetStream(dataset, 2)
    batch = next(stream)
    assert calls[-1] == ("arrow", [0, 1])
    assert batch["text"].tolist() == [[1, 2, 3], [4, 5, 6]]
    assert batch["label"].dtype == np.int64
    next(stream)
    assert [keys for form, keys in calls if form != "arrow"] == [[0]]
    assert dataset.format["type"] is None  # the user's dataset is unchanged


def test_a_format_that_the_user_has_set_is_kept():
    dataset = huggingface(x=[1, 2, 3])
    dataset.set_transform(lambda batch: {"x": [-value for value in batch["x"]]})
    assert next(MapDatasetStream(dataset, 3))["x"].tolist() == [-1, -2, -3]


def test_huggingface_rows_of_different_lengths_are_named():
    with raises_problem(reason=r"sample 2 has the shape \(3,\) at \['ids'\], but sample 0 has \(2,\)", remedy="pad"):
        next(MapDatasetStream(huggingface(ids=[[1, 2], [3, 4], [5, 6, 7]]), 3))


def test_a_dict_of_splits_is_refused():
    datasets = pytest.importorskip("datasets")
    splits = datasets.DatasetDict(train=huggingface(x=[1]), test=huggingface(x=[1]))
    with raises_problem(reason="DatasetDict holds several.* 'train', 'test'", remedy=r"pass one.*data\['train'\]"):
        make_stream(splits, DataConfig(), training=True, seed=0)


@pytest.mark.parametrize(
    ("samples", "message"),
    [
        ([np.zeros(2), np.zeros(2), np.zeros(3)], r"sample 2 has the shape \(3,\), but sample 0 has \(2,\)"),
        ([(0, [1, 2]), (1, [1])], r"sample 1 has the shape \(1,\) at \[1\], but sample 0 has \(2,\)"),
        ([{"a": 1}, {"b": 1}], r"sample 1 has the parts \['b'\], but sample 0 has \['a'\]"),
        ([(1, None), (1, 2)], r"sample 1 has the parts \[0\], \[1\], but sample 0 has \[0\]"),
        ([{"a": [[1, 2], [3]]}], r"sample 0 holds a Python object at \['a'\]"),
        ([object()], "sample 0 holds a Python object that is not an array"),
    ],
)
def test_samples_that_cannot_be_stacked_are_named(samples, message):
    with raises_problem(reason=message):
        next(MapDatasetStream(Samples(*samples), 4))


def test_a_sample_that_is_none_is_named():
    with raises_problem(reason="sample 0 is None", remedy="return the sample from __getitem__"):
        stacked([None, 1], [0, 1])


def test_shuffled_samples_are_named_by_their_index():
    rows = [np.zeros(2)] * 7 + [np.zeros(3)] + [np.zeros(2)] * 2
    with raises_problem(reason=r"sample 7 has the shape \(3,\)|but sample 7 has \(3,\)"):
        list(MapDatasetStream(Samples(*rows), 5, shuffle=True))


def test_lists_of_numbers_are_arrays_and_other_lists_are_nested():
    batch = next(MapDatasetStream(Samples([[1.0, 2.0], [3.0, 4.0]], [[5.0, 6.0], [7.0, 8.0]]), 2))
    assert batch.shape == (2, 2, 2)
    batch = next(MapDatasetStream(Samples([1, np.zeros(3)], [2, np.zeros(3)]), 2))
    assert [part.shape for part in batch] == [(2,), (2, 3)]


class NoLength:
    """Has samples, but no length."""

    def __getitem__(self, index):
        return index


class NoLengthButIterable(NoLength):
    """Can be iterated."""

    def __iter__(self):
        return iter([np.arange(3)])


class Abstract(NoLength):
    """Has an abstract `__len__`."""

    def __len__(self):
        raise NotImplementedError


def test_a_dataset_without_length_is_refused():
    for source in (NoLength(), Abstract()):
        with raises_problem(reason="has __getitem__ but no __len__", remedy="add __len__, or pass a function") as error:
            make_stream(source, DataConfig(), training=False, seed=0)
        assert "\n" not in str(error.value)
    assert isinstance(make_stream(NoLengthButIterable(), DataConfig(), training=False, seed=0), IterableStream)


def test_datasets_without_a_full_batch_are_refused():
    with raises_problem(reason="the Numbers is empty"):
        MapDatasetStream(Numbers(0), 4)
    with raises_problem(key="global_batch_size", received=12, reason="the dataset has only 11 samples"):
        MapDatasetStream(Numbers(), 12, drop_remainder=True)
    with raises_problem(key="global_batch_size", received=0):
        MapDatasetStream(Numbers(), 0)


def test_training_data_is_shuffled_by_default():
    def first(**kwargs):
        stream = make_stream(Numbers(), DataConfig(global_batch_size=4), training=True, seed=0, **kwargs)
        assert stream.repeat
        assert stream.batches_per_epoch == 2
        return next(stream)["id"].tolist()

    assert first(shuffle=False) == [0, 1, 2, 3] != first()


def test_columns_of_a_hugging_face_dataset_are_the_stacked_samples():
    """A batch is read as columns, not cut into samples and stacked again: the same bits."""
    datasets = pytest.importorskip("datasets")
    columns = {"x": np.arange(24.0).reshape(8, 3), "label": list(range(8)), "flag": [True, False] * 4}
    table = datasets.Dataset.from_dict(columns)
    stream, by_samples = (MapDatasetStream(table, 4, shuffle=True, seed=1) for _ in range(2))
    by_samples._columns = None
    for one, other in zip(stream, by_samples, strict=True):
        assert list(one) == list(other)
        assert all(one[name].dtype == other[name].dtype for name in one)
        assert all(np.array_equal(one[name], other[name]) for name in one)


def table_of_all_kinds():
    datasets = pytest.importorskip("datasets")
    random = np.random.default_rng(0)
    value, numbers = datasets.Value, random.integers(0, 100, (8, 6))
    features = {
        "double": value("float64"),
        "half": value("float16"),
        "byte": value("uint8"),
        "flag": value("bool"),
        "fixed": datasets.List(value("float32"), length=6),
        "list": datasets.List(value("int32")),
        "nested": datasets.List(datasets.List(value("int16"), length=3), length=2),
        "image": datasets.Array2D((2, 3), "uint8"),
        "class": datasets.ClassLabel(names=["a", "b"]),
    }
    columns = {
        "double": random.random(8),
        "half": random.random(8).astype(np.float16),
        "byte": numbers[:, 0],
        "flag": numbers[:, 1] > 50,
        "fixed": random.random((8, 6)),
        "list": numbers.tolist(),
        "nested": numbers.reshape(8, 2, 3).tolist(),
        "image": numbers.reshape(8, 2, 3).tolist(),
        "class": numbers[:, 0] % 2,
    }
    return datasets.Dataset.from_dict(columns, features=datasets.Features(features))


@pytest.mark.parametrize("form", [None, "numpy", "arrow", "torch"])
@pytest.mark.parametrize("rows", ["all", "selected"])
def test_columns_are_what_the_format_of_arrays_returns(form, rows):
    """The same bits and types, without a Python object for each row: only one row is formatted."""
    if form == "torch":
        pytest.importorskip("torch")
    table = table_of_all_kinds()
    table = table if rows == "all" else table.shuffle(seed=1).select([6, 1, 3, 0])
    expected = table.with_format("numpy")[:]
    given = table.with_format(form)
    (batch,) = MapDatasetStream(given, len(table))
    assert list(batch) == list(expected)
    for name, array in batch.items():
        assert array.dtype == expected[name].dtype, name
        np.testing.assert_array_equal(array, expected[name])
        assert array.flags.writeable


def test_columns_with_missing_numbers_are_read_as_formatted():
    """Numbers are missing after the first row, which decides the types."""
    table = huggingface(x=[1.0, None, 3.0], label=[0, 1, 2])
    (batch,) = MapDatasetStream(table, 3)
    np.testing.assert_array_equal(batch["x"], np.float32([1, np.nan, 3]))
    assert batch["x"].dtype == np.float32


def test_images_of_a_hugging_face_dataset_are_decoded():
    datasets = pytest.importorskip("datasets")
    images = np.arange(48, dtype=np.uint8).reshape(4, 2, 2, 3)
    features = datasets.Features({"image": datasets.Image(), "label": datasets.Value("int64")})
    table = datasets.Dataset.from_dict({"image": list(images), "label": range(4)}, features=features)
    (batch,) = MapDatasetStream(table, 4)
    np.testing.assert_array_equal(batch["image"], images)
