"""Tables to predict on: the first rows of a column must not decide the type of the others."""

import gzip

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from everstep.errors import UsageError
from everstep.testing.problems import raises_problem
from everstep.trained.inputs import Spec, open_input

PAIR = [Spec("pair", (2,), "float32")]
MANY = 200_000  # lines: more than Arrow reads to infer a column's type


def read(path, specs=PAIR, size=1000):
    """Returns all rows of a file: the ids, and an array for each input."""
    batches = list(open_input(str(path), specs).batches(size))
    ids = [each for some, _ in batches for each in some]
    return ids, [np.concatenate([arrays[i] for _, arrays in batches]) for i in range(len(specs))]


def test_a_column_that_begins_with_whole_numbers(tmp_path):
    (tmp_path / "in.csv").write_text("id,a,b\n" + "1,0,7\n" * MANY + "x2,0.5,-1e-3\n")
    ids, (values,) = read(tmp_path / "in.csv")
    assert len(ids) == MANY + 1
    assert (ids[0], ids[-1]) == ("1", "x2")
    np.testing.assert_array_equal(values[[0, -1]], np.float32([[0, 7], [0.5, -1e-3]]))


def test_a_fraction_for_an_integer_input_is_refused(tmp_path):
    (tmp_path / "in.csv").write_text("n\n" + "1234567\n" * MANY + "1.5\n")
    with raises_problem(key="--input", reason=r"cannot be read: .*invalid value '1\.5'"):
        read(tmp_path / "in.csv", [Spec("n", (), "int32")])


@pytest.mark.parametrize("value", [300, -1])
def test_a_number_outside_the_type_is_refused(tmp_path, value):
    (tmp_path / "in.csv").write_text(f"n\n5\n{value}\n")
    with raises_problem(key="--input", reason=rf"has values from .*{value}.* takes uint8\[\], from 0 to 255"):
        read(tmp_path / "in.csv", [Spec("n", (), "uint8")])


def test_ids_are_kept_as_written(tmp_path):
    (tmp_path / "in.csv").write_text('ID,a,b\n007,1,2\n"a ""b""",3,4\n')
    assert read(tmp_path / "in.csv")[0] == ["007", 'a "b"']


@pytest.mark.parametrize(
    ("name", "separator", "write"),
    [("in.tsv", "\t", open), ("in.csv.gz", ",", gzip.open), ("in.TSV.gz", "\t", gzip.open)],
)
def test_tab_separated_and_compressed_tables(tmp_path, name, separator, write):
    with write(tmp_path / name, "wt") as file:
        file.write(f"a{separator}b\n1{separator}2.5\n")
    ids, (values,) = read(tmp_path / name)
    assert (ids, values.tolist()) == ([0], [[1, 2.5]])


def test_text_over_several_lines(tmp_path):
    (tmp_path / "in.csv").write_text('text,n\n"one\ntwo",1\n,2\n')
    ids, (texts, numbers) = read(tmp_path / "in.csv", [Spec("text", (), "string"), Spec("n", (), "int64")])
    assert (texts.tolist(), numbers.tolist(), ids) == (["one\ntwo", ""], [1, 2], [0, 1])


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "cannot be read: Empty CSV file"),
        ("a\n1\n", r"has 1 columns of values \(a\), but the model's input 'pair' takes float32\[2\]"),
        ("a,b\n1,\n", "has no value in row 0, column 'b'"),
        ("a,b\n1,2\n3\n", "cannot be read: CSV parse error: (Row #3: )?Expected 2 columns, got 1"),
    ],
)
def test_tables_that_do_not_fit(tmp_path, text, message):
    (tmp_path / "in.csv").write_text(text)
    with raises_problem(key="--input", reason=message):
        read(tmp_path / "in.csv")


def test_a_table_without_rows(tmp_path):
    (tmp_path / "in.csv").write_text("a,b\n")
    assert list(open_input(str(tmp_path / "in.csv"), PAIR).batches(9)) == []


def test_columns_are_matched_to_inputs_by_name(tmp_path):
    table = pa.table({"left": [[1.0, 2.0], [3.0, 4.0]], "id": [7, 8], "right": [0, 1], "more": ["x", "y"]})
    pq.write_table(table, tmp_path / "in.parquet")
    ids, (left, right) = read(tmp_path / "in.parquet", [Spec("left", (2,), "float32"), Spec("right", (), "int32")])
    assert (ids, left.tolist(), right.tolist()) == ([7, 8], [[1, 2], [3, 4]], [0, 1])
    assert open_input(str(tmp_path / "in.parquet"), [Spec("left", (2,), "float32")]).count == 2
    with raises_problem(key="--input", reason="has no column 'wrong', but left, right, more"):
        read(tmp_path / "in.parquet", [Spec("left", (2,), "float32"), Spec("wrong", (), "int32")])


def test_a_file_in_an_object_store(tmp_path, monkeypatch):
    import fsspec

    monkeypatch.setenv("EVERSTEP_CACHE_DIR", str(tmp_path / "cache"))
    with fsspec.open("memory://bucket/in.csv", "wt") as file:
        file.write("a,b\n1,2\n")
    assert read("memory://bucket/in.csv")[1][0].tolist() == [[1, 2]]
    with pytest.raises(UsageError) as error:
        read("memory://bucket/other.csv")
    assert (error.value.key, error.value.received) == ("--input", "memory://bucket/other.csv")


def test_a_column_of_text_for_a_model_that_takes_numbers(tmp_path):
    (tmp_path / "in.csv").write_text("text,label\ngood,pos\n")
    with raises_problem(
        key="--input",
        reason=r"the columns text, label hold text, but the model's input 'pair' takes float32\[2\]",
        remedy=r"everstep.predict\(RUN, vectorize\(texts\)\)",
    ):
        read(tmp_path / "in.csv")
    (tmp_path / "in.csv").write_text("a,b,label\n1,2,pos\n")
    with raises_problem(key="--input", reason="the column 'label' holds text", remedy="--without label"):
        read(tmp_path / "in.csv")
