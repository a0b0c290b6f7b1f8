"""Rows of SQLite tables as batches."""

import contextlib
import sqlite3
import threading

import numpy as np
import pytest

from everstep.data import DataConfig, SqliteStream, make_stream
from everstep.testing.problems import raises_problem

ROWS = 40


@pytest.fixture
def path(tmp_path):
    """A table whose row numbers have gaps."""
    path = str(tmp_path / "odd ?#name.db")
    with contextlib.closing(sqlite3.connect(path)) as database, database:
        database.execute("CREATE TABLE numbers (id INTEGER PRIMARY KEY, half REAL, 'of \"it\"' INTEGER, name TEXT)")
        rows = [(3 * number, number / 2, number % 2, f"row {number}") for number in range(ROWS)]
        database.executemany("INSERT INTO numbers VALUES (?, ?, ?, ?)", rows)
        database.execute("CREATE TABLE bare (id INTEGER PRIMARY KEY) WITHOUT ROWID")
        database.execute("CREATE VIEW seen AS SELECT id FROM numbers")
        database.execute("CREATE TABLE gaps (id, some)")
        database.execute("INSERT INTO gaps VALUES (1, NULL)")
        database.execute("CREATE TABLE empty (id)")
    return path


def test_batches_have_the_nesting_of_features_and_labels(path):
    x, y = next(SqliteStream(path, "numbers", features=["id", "half"], labels='of "it"', batch_size=5))
    np.testing.assert_array_equal(x, np.stack([3 * np.arange(5), np.arange(5) / 2], axis=1))
    assert (y.dtype, y.tolist()) == (np.int64, [0, 1, 0, 1, 0])
    x, y = next(SqliteStream(path, "numbers", "half", ["id"], batch_size=2))
    assert (x.tolist(), y.tolist()) == ([0, 0.5], [[0], [3]])
    assert next(SqliteStream(path, "numbers", "id", batch_size=2)).tolist() == [0, 3]


def test_the_order_is_that_of_arrays(path):
    rows = SqliteStream(path, "numbers", "id", batch_size=8, shuffle=True, seed=3, repeat=True)
    config = DataConfig(global_batch_size=8)
    arrays = make_stream(3 * np.arange(ROWS), config, training=True, seed=3)
    for _ in range(12):
        assert next(make_stream(rows, config, training=True, seed=0)).tolist() == next(arrays).tolist()


def test_one_thread_peeks_and_another_reads(path):
    rows = SqliteStream(path, "numbers", "id", batch_size=8)
    first, read = rows.peek(), []
    thread = threading.Thread(target=lambda: read.extend(rows))
    thread.start()
    thread.join()
    assert len(read) == 5
    assert read[0].tolist() == first.tolist()


def test_what_is_read_identifies_the_data(path):
    def sqlite_stream(**values):
        return SqliteStream(path, **{"table": "numbers", "features": "id", "batch_size": 7, **values})

    others = [
        {"features": "half"},
        {"labels": "id"},
        {"batch_size": 6},
        {"shuffle": True},
        {"shuffle": True, "seed": 1},
    ]
    assert len({str(sqlite_stream(**values).fingerprint) for values in [{}, *others]}) == 6
    assert sqlite_stream(seed=1).fingerprint == sqlite_stream().fingerprint, "it has no effect on rows in order"
    assert sqlite_stream().files == [path]


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        ({"table": "number"}, {"key": "table", "received": "number", "remedy": "numbers"}),
        ({"table": "bare"}, {"key": "table", "received": "bare", "reason": "no row numbers"}),
        ({"table": "seen"}, {"key": "table", "received": "seen", "reason": "no row numbers"}),
        ({"table": "empty"}, {"key": "table", "received": "empty", "reason": "no rows"}),
        ({"features": ["id", "haf"]}, {"key": "features", "received": "haf", "remedy": "half"}),
        ({"features": "name"}, {"key": "features", "received": "name", "reason": "type text"}),
        ({"table": "gaps", "labels": "some"}, {"key": "labels", "received": "some", "reason": "missing values"}),
        ({"batch_size": 0}, {"key": "global_batch_size", "received": 0}),
        ({"path": "none.db"}, {"key": "path", "received": "none.db"}),
    ],
)
def test_what_cannot_be_read_is_named(path, arguments, problem):
    with raises_problem(**problem):
        SqliteStream(**{"path": path, "table": "numbers", "features": "id", **arguments})


def test_other_files_are_refused(tmp_path):
    (tmp_path / "rows.db").write_text("no database, but long enough to be looked at")
    with raises_problem(key="path", reason="not a database"):
        SqliteStream(str(tmp_path / "rows.db"), "numbers", "id")


def test_a_row_that_is_deleted_meanwhile_is_named(path):
    rows = SqliteStream(path, "numbers", "id", batch_size=8)
    with contextlib.closing(sqlite3.connect(path)) as database, database:
        database.execute("DELETE FROM numbers WHERE id = 6")
    with raises_problem(key="path", reason="the row 6 has been deleted"):
        next(rows)
