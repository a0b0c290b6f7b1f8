"""Columns of Parquet files as batches."""

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from everstep.data import DataConfig, ParquetSource, make_stream
from everstep.testing.problems import raises_problem

ROWS = 40


@pytest.fixture
def path(tmp_path):
    numbers = np.arange(ROWS)
    columns = {
        "id": numbers,
        "half": (numbers / 2).astype(np.float32),
        "pair": pa.FixedSizeListArray.from_arrays(pa.array(np.arange(2 * ROWS, dtype=np.int16)), 2),
        "name": [f"row {number}" for number in numbers],
    }
    pq.write_table(pa.table(columns), tmp_path / "rows.parquet", row_group_size=8)
    return str(tmp_path / "rows.parquet")


def stream(source, training=True, size=5, **values):
    return make_stream(source, DataConfig(global_batch_size=size, **values), training=training, seed=3)


def test_batches_have_the_nesting_of_x_and_y(path):
    x, y = next(stream(ParquetSource(path, x=["id", "half"], y="id"), training=False))
    np.testing.assert_array_equal(x, np.stack([np.arange(5), np.arange(5) / 2], axis=1))
    assert y.tolist() == [0, 1, 2, 3, 4]
    pairs = next(stream(ParquetSource(path, x="pair"), training=False))
    assert pairs.dtype == np.int16
    assert pairs.tolist() == [[0, 1], [2, 3], [4, 5], [6, 7], [8, 9]]


def test_rows_are_mixed_within_two_row_groups(path):
    one = stream(ParquetSource(path, x="id"), size=8)
    epochs = [[number for _ in range(5) for number in next(one).tolist()] for _ in range(2)]
    assert sorted(epochs[0]) == sorted(epochs[1]) == list(range(ROWS))
    assert epochs[0] != epochs[1]
    for epoch in epochs:
        assert len({number // 8 for number in epoch[:16]}) == 2
        assert epoch[:16] != sorted(epoch[:16])


def test_no_more_than_two_row_groups_are_read_for_a_batch(path, monkeypatch):
    source = ParquetSource(path, x="id")
    read = []
    group = source.group
    monkeypatch.setattr(source, "group", lambda number: read.append(number) or group(number))
    one = stream(source)
    one.restore({"epoch": 5, "batch": 7})
    next(one)
    assert len(read) <= 2, "what comes before the position is not read"
    read.clear()
    for _ in range(8 * 2):
        next(one)
    assert len(read) <= 5 * 2 + 2, "each is read once in an epoch"


@pytest.mark.parametrize(
    ("columns", "fields"),
    [
        (
            {},
            {"key": "path", "reason": "the column 'name' is not numbers.*string", "remedy": "name the columns to read"},
        ),
        ({"x": "missing"}, {"key": "path", "reason": "has no column 'missing'"}),
        ({"y": "id"}, {"key": "x", "reason": "is None, but y is given"}),
        (
            {"x": "gaps"},
            {"key": "path", "reason": "the column 'gaps' has missing values", "remedy": "fill or convert it"},
        ),
        ({"x": "lists"}, {"key": "path", "reason": "the column 'lists' is not numbers"}),
    ],
)
def test_what_cannot_be_read_is_named(path, columns, fields):
    table = pq.read_table(path)
    table = table.append_column("gaps", pa.array([None, *range(ROWS - 1)]))
    table = table.append_column("lists", [[[1] * (number % 3) for number in range(ROWS)]])
    pq.write_table(table, path)
    with raises_problem(**fields):
        next(stream(ParquetSource(path, **columns)))


def test_empty_row_groups_are_left_out(tmp_path):
    with pq.ParquetWriter(tmp_path / "rows.parquet", pa.schema({"id": pa.int64()})) as writer:
        for start, stop in ((0, 3), (3, 3), (3, 8)):
            writer.write_table(pa.table({"id": pa.array(range(start, stop), pa.int64())}))
    source = ParquetSource(str(tmp_path / "rows.parquet"), x="id")
    assert [batch.tolist() for batch in stream(source, training=False)] == [[0, 1, 2, 3, 4], [5, 6, 7]]


def test_a_column_that_is_named_twice_is_read_once(path):
    x, y = next(stream(ParquetSource(path, x=["id"], y=["id"]), training=False))
    assert x.tolist() == y.tolist() == [[0], [1], [2], [3], [4]]


def test_labels_of_text_are_numbers_of_classes(tmp_path):
    for name, labels in (("train", ["dog", "cat", "bird", "cat"]), ("test", ["dog", "cat", "cat", "cat"])):
        table = pa.table({"x": [1.0, 2.0, 3.0, 4.0], "label": pa.array(labels).dictionary_encode()})
        pq.write_table(table if name == "train" else table.cast(pa.schema({"x": pa.float64(), "label": pa.string()})),
                       tmp_path / f"{name}.parquet", row_group_size=3)  # fmt: skip
    train = ParquetSource(str(tmp_path / "train.parquet"), x="x", y="label")
    test = ParquetSource(str(tmp_path / "test.parquet"), x="x", y="label", classes=train.classes)
    assert train.classes == ["bird", "cat", "dog"]
    for source, expected in ((train, [2, 1, 0, 1]), (test, [2, 1, 1, 1])):
        opened = stream(source, training=False, size=4)
        assert opened.classes == train.classes
        assert next(opened)[1].tolist() == expected
    with raises_problem(received="bird", reason="the label is none of the 2 classes"):
        ParquetSource(str(tmp_path / "train.parquet"), x="x", y="label", classes=["cat", "dog"])
