"""Tables by their columns: what separates values, damage, and what folders above a file do not add."""

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from everstep.data.formats import BadFile, CsvOptions, as_bad_file, open_csv, open_parquet, read_csv, read_parquet
from everstep.data.formats.tables import separator


@pytest.mark.parametrize(
    ("name", "expected"), [("a.csv", ","), ("a.csv.gz", ","), ("a.tsv", "\t"), ("a.TSV.gz", "\t"), ("tsv", ",")]
)
def test_the_name_says_what_separates_values(name, expected):
    assert separator(name) == expected


@pytest.fixture
def damaged(tmp_path):
    """A Parquet file with checksums, in which one bit of the values is flipped."""
    path = tmp_path / "rows.parquet"
    table = pa.table({"a": list(range(1000)), "b": [1.5] * 1000})
    pq.write_table(table, path, write_page_checksum=True, compression="none", use_dictionary=False)
    data = bytearray(path.read_bytes())
    data[2000] ^= 1
    path.write_bytes(data)
    return path


def test_a_checksum_that_does_not_match_is_damage(damaged):
    with pytest.raises(BadFile, match="could not verify page integrity, CRC checksum verification failed"):
        read_parquet(damaged)
    with open_parquet(damaged) as file, pytest.raises(BadFile, match="CRC checksum verification failed"), as_bad_file():
        list(file.iter_batches())


def test_what_is_no_table(tmp_path):
    path = tmp_path / "a.parquet"
    path.write_bytes(b"no table")
    for read in (read_parquet, open_parquet):
        with pytest.raises(BadFile) as caught:
            read(path)
        assert "\n" not in str(caught.value)
    path.write_bytes(b"")
    with pytest.raises(BadFile, match="^Empty CSV file$"):
        read_csv(path, CsvOptions())
    with pytest.raises(BadFile), open_csv(tmp_path / "none.csv", CsvOptions()):
        pass


def test_folders_of_tables_and_above_them(tmp_path):
    folder = tmp_path / "lr=0.1" / "rows"
    (folder / "day=1").mkdir(parents=True)
    pq.write_table(pa.table({"a": [1, 2]}), folder / "day=1" / "x.parquet")
    assert read_parquet(folder / "day=1" / "x.parquet").column_names == ["a"]
    assert read_parquet(folder).column_names == ["a", "day"]
    assert read_parquet(folder, ["a"])["a"].to_pylist() == [1, 2]
