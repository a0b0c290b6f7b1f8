"""Opens the files that a configuration names, each by what its name ends with."""

import os
from collections.abc import Callable, Sequence
from typing import Any, Literal

from everstep.data.files import COMPRESSIONS, Patterns, find_files, unpacked
from everstep.data.formats.tables import separator
from everstep.data.records.datasets import ArrayRecord, HuggingFace, is_saved_dataset, open_saved_dataset
from everstep.data.records.examples import TfExamples
from everstep.data.records.parquet import Parquet
from everstep.data.records.records import JoinedRecords, Records
from everstep.data.records.text_files import Csv, JsonLines, Paragraphs, SpansOfFile, TextLines, WholeFile
from everstep.errors import Problem, UsageError

_TEXT_KINDS = (".jsonl", ".ndjson", ".json", ".csv", ".tsv", ".txt", ".md")

KINDS = (*_TEXT_KINDS, ".parquet", ".pq", ".array_record", ".arrayrecord", ".tfrecord", ".tfrecords", ".tfrec")
"""What the names of files end with that can be opened; those that are text may be compressed, such as `.jsonl.gz`."""

Documents = Literal["file", "paragraph", "line"]
"""What is one row of a plain text file."""

_TEXTS: dict[str, Callable[[str, str], SpansOfFile]] = {"file": WholeFile, "paragraph": Paragraphs, "line": TextLines}


def open_records(
    source: Patterns | Any,
    key: str = "input_path",
    *,
    columns: Sequence[str] | None = None,
    documents: Documents = "file",
    array_record: Literal["json", "text", "bytes"] = "json",
) -> Records:
    """Returns the rows of all files, in the order of the files' names.

    Args:
      source: A path, a glob, several of them separated by commas, or a list of those: `.jsonl`, `.parquet`, `.csv`,
        `.tsv`, `.txt`, `.array_record`, `.tfrecord` files, folders that `datasets` saved, URLs of a store; or a
        `datasets.Dataset`.
      key: The configuration key that names them, for errors.
      columns: The columns that are needed; None for all. Parquet files read no others.
      documents: What is one row of a plain text file.
      array_record: What a record of an ArrayRecord file is.

    Raises:
      UsageError: A file is missing, empty, damaged or of another kind, or a column is missing.
    """
    if hasattr(source, "column_names"):
        return HuggingFace(source, key, columns)
    files = find_files(source, key, folders=True)
    problems = [problem for file in files if (problem := _unknown(file, key))]
    if problems:
        raise UsageError(problems)
    parts = [_open(file, key, columns, documents, array_record) for file in files]
    return parts[0] if len(parts) == 1 else JoinedRecords(parts)


def _unknown(file: str, key: str) -> Problem | None:
    """Returns why a file is of no known kind; None if it is."""
    if is_saved_dataset(file) or file.lower().endswith(KINDS):
        return None
    name, suffix = os.path.splitext(file.lower())
    if suffix in COMPRESSIONS and name.endswith(_TEXT_KINDS):
        return None
    return Problem(key, f"expected a file that ends with {', '.join(KINDS)}", received=file)


def _open(file: str, key: str, columns: Sequence[str] | None, documents: Documents, array_record: str) -> Records:
    name = file.lower()
    if is_saved_dataset(file):
        return open_saved_dataset(file, key, columns)
    if name.endswith((".parquet", ".pq")):
        return Parquet(file, key, columns)
    if name.endswith((".array_record", ".arrayrecord")):
        return ArrayRecord(file, key, array_record)
    if name.endswith((".tfrecord", ".tfrecords", ".tfrec")):
        return TfExamples(file, key)
    if not name.endswith(COMPRESSIONS):
        return _open_text(file, key, columns, documents)
    rows = _open_text(unpacked(file, key), key, columns, documents)
    rows.name = file
    return rows


def _open_text(file: str, key: str, columns: Sequence[str] | None, documents: Documents) -> SpansOfFile:
    name = file.lower()
    if name.endswith((".csv", ".tsv")):
        return Csv(file, key, separator(file), columns)
    return _TEXTS[documents](file, key) if name.endswith((".txt", ".md")) else JsonLines(file, key)
