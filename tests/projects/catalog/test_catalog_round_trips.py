"""Whatever is saved is loaded as it was, for every type."""

import contextlib
import math
import os
import tempfile
from pathlib import Path

import hypothesis.extra.numpy as arrays
import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.projects.catalog.catalog_project import Project

pytestmark = pytest.mark.slow

few = settings(max_examples=25, deadline=None)

KINDS = st.one_of(
    arrays.boolean_dtypes(),
    arrays.integer_dtypes(endianness="="),
    arrays.floating_dtypes(endianness="=", sizes=(16, 32, 64)),
    arrays.unicode_string_dtypes(endianness="=", max_len=4),
    arrays.datetime64_dtypes(endianness="="),
)
SHAPES = arrays.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=4)
ARRAYS = arrays.arrays(KINDS, SHAPES)
NAMES = st.text(st.characters(categories=("L", "N"), include_characters="_ -"), min_size=1, max_size=8)
TEXT = st.text(st.characters(exclude_categories=("Cs",)))
PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=8,
)


@contextlib.contextmanager
def trip(entry: str):
    """Saves and loads through a catalog of one entry."""
    with tempfile.TemporaryDirectory() as folder:
        catalog = Project(Path(folder, "project")).catalog(f"data: {entry}\n")

        def there_and_back(value):
            catalog.save("data", value)
            return catalog.load("data")

        yield there_and_back


def assert_same(got, expected):
    assert got.dtype == expected.dtype
    assert got.shape == expected.shape
    assert got.tobytes() == expected.tobytes()


@few
@given(st.dictionaries(NAMES, ARRAYS, max_size=3), st.booleans())
def test_npz(value, compressed):
    with trip(f"{{filepath: x.npz, save_args: {{compressed: {str(compressed).lower()}}}}}") as there_and_back:
        got = there_and_back(value)
    assert list(got) == list(value)
    for name, array in value.items():
        assert_same(got[name], array)


@few
@given(ARRAYS)
def test_npy(value):
    with trip("x.npy") as there_and_back:
        assert_same(there_and_back(value), value)


@few
@given(TEXT)
def test_text(value):
    with trip("x.txt") as there_and_back:
        assert there_and_back(value) == value


@few
@given(PLAIN, st.sampled_from(["x.json", "x.json.gz", "x.yaml"]))
def test_plain_values(value, path):
    with trip(path) as there_and_back:
        assert there_and_back(value) == value


COLUMNS = st.integers(1, 5).flatmap(
    lambda rows: st.fixed_dictionaries(
        {
            "whole": st.lists(st.integers(-(2**63), 2**63 - 1), min_size=rows, max_size=rows),
            "number": st.lists(
                st.floats(allow_nan=False, allow_infinity=False) | st.none(), min_size=rows, max_size=rows
            ),
            "text": st.lists(TEXT.filter(lambda t: "\0" not in t) | st.none(), min_size=rows, max_size=rows),
            "flag": st.lists(st.booleans(), min_size=rows, max_size=rows),
        }
    )
)


def table_of(columns) -> pa.Table:
    types = {"whole": pa.int64(), "number": pa.float64(), "text": pa.string(), "flag": pa.bool_()}
    return pa.table({name: pa.array(values, types[name]) for name, values in columns.items()})


@few
@given(COLUMNS, st.sampled_from(["x.csv", "x.csv.gz", "x.tsv"]))
def test_csv(columns, path):
    table = table_of(columns)
    types = "{whole: int64, number: float64, text: text, flag: bool}"
    with trip(f"{{filepath: {path}, load_args: {{form: arrow, dtype: {types}}}}}") as there_and_back:
        assert there_and_back(table).to_pydict() == table.to_pydict()


@few
@given(COLUMNS)
def test_parquet(columns):
    table = table_of(columns)
    with trip("{filepath: x.parquet, load_args: {form: arrow}}") as there_and_back:
        assert there_and_back(table).equals(table)


@pytest.mark.parametrize("path", ["x.csv", "x.parquet"])
def test_tables_become_data_frames_and_columns(path):
    frame = pd.DataFrame({"a": [1, 2], "b": ["x", ""], "c": [0.1, math.nan]})
    with trip(path) as there_and_back:
        pd.testing.assert_frame_equal(there_and_back(frame), frame)
    with trip(f"{{filepath: {path}, load_args: {{form: columns}}}}") as there_and_back:
        got = there_and_back({"n": np.arange(3), "t": ["a", "b", "c"]})
    assert got["n"].tolist() == [0, 1, 2]
    assert got["t"].tolist() == ["a", "b", "c"]


def test_parquet_keeps_an_index():
    frame = pd.DataFrame({"a": [1.5, 2.5]}, index=pd.Index(["x", "y"], name="id"))
    with trip("x.parquet") as there_and_back:
        pd.testing.assert_frame_equal(there_and_back(frame), frame)


@settings(max_examples=15, deadline=None)
@given(
    st.sampled_from([1, 3, 4]).flatmap(
        lambda channels: arrays.arrays(np.uint8, st.tuples(*map(st.just, (2, 3, 5, channels))))
    ),
    st.lists(st.sampled_from(["cat", "dog, large", '"']), min_size=2, max_size=2),
)
def test_images(pixels, labels):
    with trip("{type: images, filepath: x}") as there_and_back:
        got = there_and_back({"image": pixels, "label": np.array(labels), "age": np.array([3, 4])})
    assert_same(got["image"], pixels)
    assert got["label"].tolist() == labels
    assert got["age"].tolist() == [3, 4]
    assert got["file"].tolist() == ["images/00000.png", "images/00001.png"]


@few
@given(st.lists(st.integers(), max_size=3), arrays.arrays(np.float32, 3), st.booleans())
def test_pickle_where_it_is_allowed(numbers, array, packed):
    with tempfile.TemporaryDirectory() as folder:
        project = Project(Path(folder, "project"))
        project.allow("allow-pickle = true")
        catalog = project.catalog(f"data: x.pkl{'.gz' if packed else ''}\n")
        catalog.save("data", (numbers, array))
        got = catalog.load("data")
    assert got[0] == numbers
    assert_same(got[1], array)


@settings(max_examples=6, deadline=None)
@given(
    arrays.arrays(np.float32, (3, 2, 2)),
    arrays.arrays(np.int64, 3),
    st.lists(st.binary(), min_size=3, max_size=3),
    st.sampled_from(["", "GZIP"]),
)
def test_tfrecord(image, label, data, compression):
    pytest.importorskip("tensorflow")
    held = np.empty(3, object)
    held[:] = data
    packed = f"compression: '{compression}'"
    entry = f"{{filepath: x.tfrecord, load_args: {{shapes: {{image: [2, 2]}}, {packed}}}, save_args: {{{packed}}}}}"
    with trip(entry) as there_and_back:
        got = there_and_back({"image": image, "label": label, "data": held})
    assert_same(got["image"], image)
    assert_same(got["label"], label)
    assert got["data"].tolist() == data


@pytest.mark.backend
def test_keras():
    import keras

    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(2), keras.layers.BatchNormalization()])
    x = np.arange(6, dtype="float32").reshape(2, 3)
    with trip("x.keras") as there_and_back:
        got = there_and_back(model)
    np.testing.assert_array_equal(got.predict(x, verbose=0), model.predict(x, verbose=0))


def test_path(tmp_path):
    (tmp_path / "made" / "sub").mkdir(parents=True)
    (tmp_path / "made" / "sub" / "a.bin").write_bytes(b"abc")
    catalog = Project(tmp_path / "project").catalog("folder: data/folder\nfile: {type: path, filepath: data/a.bin}\n")
    catalog.save("folder", tmp_path / "made")
    catalog.save("file", str(tmp_path / "made" / "sub" / "a.bin"))
    assert catalog.load("folder") == tmp_path / "project" / "data" / "folder"
    assert (catalog.load("folder") / "sub" / "a.bin").read_bytes() == b"abc"
    assert os.fspath(catalog.load("file")).endswith("data/a.bin")
    assert catalog.load("file").read_bytes() == b"abc"
