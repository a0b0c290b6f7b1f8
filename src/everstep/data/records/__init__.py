"""Rows of files by number: JSON lines, CSV, Parquet, plain text, ArrayRecord, and Hugging Face datasets.

    rows = open_records("data/*.jsonl", columns=["text"])
    rows[17]["text"]
    rows.where(17)  # 'data/b.jsonl, line 3'

records.py     the interface of a file's rows, and several files as one
opening.py     opens a file by what its name ends with
text_files.py  JSON lines, CSV, lines, paragraphs, whole documents
parquet.py     Parquet, a row group at a time, also for `ParquetSource`; a damaged one is named, with its rows
datasets.py    Hugging Face datasets and ArrayRecord
examples.py    TFRecord files of `tf.train.Example`s
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
