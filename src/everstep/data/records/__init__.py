"""Rows of files by number: JSON lines, CSV, Parquet, plain text, ArrayRecord, and Hugging Face datasets.

rows = open_records("data/*.jsonl", columns=["text"])
rows[17]["text"]
rows.where(17)  # 'data/b.jsonl, line 3'
"""

from everstep.data.records.opening import KINDS, open_records
from everstep.data.records.records import JoinedRecords, Records, Row

__all__ = ["KINDS", "JoinedRecords", "Records", "Row", "open_records"]
