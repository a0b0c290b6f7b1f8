"""Rows of files by number: JSON lines, CSV, Parquet, plain text, ArrayRecord, and Hugging Face datasets.

    rows = open_records("data/*.jsonl", columns=["text"])
    rows[17]["text"]
    rows.where(17)  # 'data/b.jsonl, line 3'

records.py     the interface of a file's rows, and several files as one; a column that does not exist
opening.py     which reader opens a file: by what its name ends with; files of an unknown kind
text_files.py  JSON lines, CSV (as rows: every value is text), lines, paragraphs, whole documents; blank lines, byte
               order marks
parquet.py     Parquet a row group at a time; a damaged one is named, with its rows
datasets.py    Hugging Face datasets saved on disk, and ArrayRecord
examples.py    TFRecord files of `tf.train.Example`s by number, only uncompressed
"""

from typing import TYPE_CHECKING

from everstep.doors import lazy_names

if TYPE_CHECKING:
    from everstep.data.records.opening import (
        open_records,
    )
    from everstep.data.records.records import (
        JoinedRecords,
        Records,
        Row,
    )

__getattr__, __dir__ = lazy_names(__name__, __file__)
