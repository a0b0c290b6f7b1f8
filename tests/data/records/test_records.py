"""Rows by number, of every kind of file; what is wrong names the file and the row."""

import bz2
import csv
import gzip
import json
import lzma
import pickle

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from everstep.data.records import open_records
from everstep.errors import UsageError

ROWS = [{"text": text, "source": f"s{n}"} for n, text in enumerate(["one", 'a "quoted", line\nand more', "ünï→", "4"])]


def write_jsonl(folder):
    lines = [json.dumps(row, ensure_ascii=False) for row in ROWS]
    (folder / "a.jsonl").write_bytes("\r\n\n".join(lines[:3]).encode())
    (folder / "b.jsonl").write_text(lines[3] + "\n")


def write_csv(folder):
    for name, rows in (("a.csv", ROWS[:3]), ("b.csv", ROWS[3:])):
        with open(folder / name, "w", newline="", encoding="utf-8-sig") as file:
            writer = csv.DictWriter(file, ["text", "source"])
            writer.writeheader()
            writer.writerows(rows)


def write_parquet(folder):
    pq.write_table(pa.Table.from_pylist(ROWS[:3]), folder / "a.parquet", row_group_size=2)
    pq.write_table(pa.Table.from_pylist(ROWS[3:]), folder / "b.parquet")


def write_dataset(folder):
    datasets = pytest.importorskip("datasets")
    datasets.Dataset.from_list(ROWS).save_to_disk(folder / "saved")


def write_array_record(folder):
    module = pytest.importorskip("array_record.python.array_record_module")
    for name, rows in (("a.array_record", ROWS[:3]), ("b.array_record", ROWS[3:])):
        writer = module.ArrayRecordWriter(str(folder / name), "group_size:1")
        for row in rows:
            writer.write(json.dumps(row).encode())
        writer.close()


WRITERS = {
    "jsonl": write_jsonl,
    "csv": write_csv,
    "parquet": write_parquet,
    "dataset": write_dataset,
    "array_record": write_array_record,
}


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("kind", WRITERS)
def test_rows_by_number(tmp_path, kind):
    WRITERS[kind](tmp_path)
    rows = open_records(f"{tmp_path}/*")
    assert len(rows) == 4
    assert set(rows.columns) == {"text", "source"}
    assert [rows[number] for number in range(4)] == ROWS
    assert rows.read([3, 0, 2, 0]) == [ROWS[3], ROWS[0], ROWS[2], ROWS[0]]
    assert pickle.loads(pickle.dumps(rows)).read([2]) == [ROWS[2]]
    assert [number for chunk in rows.chunks for number in chunk] == [0, 1, 2, 3]
    assert rows.files
    with pytest.raises(IndexError):
        rows[4]


def test_places_are_those_an_editor_shows(tmp_path):
    write_jsonl(tmp_path)
    rows = open_records(f"{tmp_path}/*")
    assert [rows.where(n).rpartition("/")[2] for n in range(4)] == [
        "a.jsonl, line 1",
        "a.jsonl, line 3",
        "a.jsonl, line 5",
        "b.jsonl, line 1",
    ]


def test_csv_rows_may_span_lines(tmp_path):
    write_csv(tmp_path)
    rows = open_records(f"{tmp_path}/a.csv")
    assert [rows.where(n).rpartition(" ")[2] for n in range(3)] == ["2", "3", "5"]


@pytest.mark.parametrize(
    ("documents", "expected"),
    [
        ("file", ["\nOne line.\nAnother.\r\n\n \nThird.\n"]),
        ("line", ["One line.", "Another.", " ", "Third."]),
        ("paragraph", ["\nOne line.\nAnother.\r", "Third.\n"]),
    ],
)
def test_plain_text(tmp_path, documents, expected):
    (tmp_path / "a.txt").write_bytes(b"\nOne line.\nAnother.\r\n\n \nThird.\n")
    rows = open_records(str(tmp_path / "a.txt"), documents=documents)
    assert [row["text"] for row in rows.read(range(len(rows)))] == expected


def test_only_needed_columns_of_parquet(tmp_path):
    write_parquet(tmp_path)
    assert open_records(f"{tmp_path}/*", columns=["source"])[2] == {"source": "s2"}


@given(st.lists(st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\r\0")), min_size=1, max_size=5))
def test_any_text_survives_csv(tmp_path_factory, texts):
    path = tmp_path_factory.mktemp("any") / "a.csv"
    with open(path, "w", newline="", encoding="utf-8") as file:
        csv.writer(file, quoting=csv.QUOTE_ALL).writerows([["n", "text"], *enumerate(texts)])
    rows = open_records(str(path))
    assert [row["text"] for row in rows.read(range(len(rows)))] == texts


def read_all(path, **options):
    rows = open_records(str(path), **options)
    return rows.read(range(len(rows)))


def refused(path, **options):
    with pytest.raises(UsageError) as caught:
        read_all(path, **options)
    assert "\n" not in str(caught.value)
    return caught.value


def test_broken_json_line(tmp_path):
    (tmp_path / "a.jsonl").write_text('{"text": "a"}\n{"text": \n{"text": "c"}\n')
    error = refused(tmp_path / "a.jsonl")
    assert (error.key, error.origin) == ("input_path", f"{tmp_path}/a.jsonl, line 2")
    assert "not JSON" in error.reason


def test_json_array_is_not_lines(tmp_path):
    (tmp_path / "a.json").write_text('[\n{"text": "a"}\n]\n')
    assert "one object per line" in refused(tmp_path / "a.json").remedy


def test_json_line_that_is_no_object(tmp_path):
    (tmp_path / "a.jsonl").write_text('{"text": "a"}\n"b"\n')
    assert refused(tmp_path / "a.jsonl").origin.endswith("line 2")


@pytest.mark.parametrize("name", ["a.jsonl", "a.txt", "a.csv"])
def test_undecodable_bytes(tmp_path, name):
    (tmp_path / name).write_bytes(b'{"text": 1}\n' * 2 + b'{"text": "\xff"}\n')
    error = refused(tmp_path / name, documents="line")
    assert error.origin.endswith("line 3")
    assert f"byte {24 + 10} of the file" in error.reason


def test_csv_with_another_number_of_values(tmp_path):
    (tmp_path / "a.csv").write_text("text,label\na,1\nb,2,3\n")
    error = refused(tmp_path / "a.csv")
    assert error.origin.endswith("line 3")
    assert "3 values" in error.reason


@pytest.mark.parametrize("write", [write_csv, write_parquet])
def test_missing_column_names_the_nearest(tmp_path, write):
    write(tmp_path)
    assert refused(tmp_path / "a.*", columns=["txt"]).remedy == "did you mean 'text'?"


def test_missing_column_of_a_row(tmp_path):
    write_jsonl(tmp_path)
    rows = open_records(f"{tmp_path}/*")
    with pytest.raises(UsageError) as caught:
        rows.value(1, rows[1], "txt")
    assert (caught.value.remedy, caught.value.origin) == ("did you mean 'text'?", f"{tmp_path}/a.jsonl, line 3")


def test_damaged_row_group(tmp_path):
    table = pa.table({"text": [f"text {n} " * 50 for n in range(300)]})
    path = tmp_path / "a.parquet"
    pq.write_table(table, path, row_group_size=100, write_page_checksum=True)
    column = pq.ParquetFile(path).metadata.row_group(1).column(0)
    data = bytearray(path.read_bytes())
    data[column.dictionary_page_offset + column.total_compressed_size // 2] ^= 0xFF
    path.write_bytes(data)
    rows = open_records(str(path))
    assert rows[0] == table.slice(0, 1).to_pylist()[0], "other row groups are whole"
    error = refused(path)
    assert (error.key, error.origin) == ("input_path", f"{path}, rows 100 to 199")
    assert "row group 1" in error.reason


def test_not_what_the_name_says(tmp_path):
    (tmp_path / "a.parquet").write_text("text")
    assert "Parquet" in refused(tmp_path / "a.parquet").reason
    (tmp_path / "a.docx").write_text("text")
    assert ".jsonl" in refused(tmp_path / "a.docx").reason
    (tmp_path / "a.parquet.gz").write_text("text")
    assert ".jsonl" in refused(tmp_path / "a.parquet.gz").reason


@pytest.mark.parametrize(("suffix", "opener"), [(".gz", gzip.open), (".xz", lzma.open), (".bz2", bz2.open)])
def test_compressed_text_is_unpacked_once(tmp_path, monkeypatch, suffix, opener):
    monkeypatch.setenv("EVERSTEP_CACHE_DIR", str(tmp_path / "cache"))
    write_jsonl(tmp_path)
    path = tmp_path / f"a.jsonl{suffix}"
    with opener(path, "wb") as file:
        file.write((tmp_path / "a.jsonl").read_bytes())
    rows = open_records(str(path))
    assert rows.read(range(3)) == ROWS[:3]
    assert (rows.where(1), list(rows.files)) == (f"{path}, line 3", [str(path)])
    (copy,) = (tmp_path / "cache").rglob("a.jsonl")
    before = copy.stat()
    assert len(open_records(str(path))) == 3
    assert copy.stat() == before

    path.write_bytes(path.read_bytes()[:-9])
    error = refused(path)
    assert error.received == str(path)
    assert "cannot be unpacked" in error.reason


def test_array_record_that_is_damaged(tmp_path):
    write_array_record(tmp_path)
    path = tmp_path / "a.array_record"
    path.write_bytes(path.read_bytes()[:40])
    assert refused(path).received == str(path)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_dataset_with_splits_names_them(tmp_path):
    datasets = pytest.importorskip("datasets")
    datasets.DatasetDict({"train": datasets.Dataset.from_list(ROWS)}).save_to_disk(tmp_path / "saved")
    assert str(tmp_path / "saved" / "train") in refused(tmp_path / "saved").remedy
