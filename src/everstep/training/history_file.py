"""`history.csv` of a job: a row per epoch, counted from 0 over all attempts."""

import csv
import io
from collections.abc import Mapping, Sequence
from typing import Any


def history_csv(epochs: Sequence[int], history: Mapping[str, Sequence[Any]]) -> str:
    """Returns the table as text: `epoch`, then a column for each metric.

    It reads as the DataFrame of the history: `pandas.read_csv(path, index_col=0)`. Floats read back to the same bits.
    """
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["epoch", *history])
    for row, epoch in enumerate(epochs):
        writer.writerow([epoch, *(_cell(values, row) for values in history.values())])
    return text.getvalue()


def _cell(values: Sequence[Any], row: int) -> str:
    """Returns a value; empty for a metric that some epochs do not have."""
    return repr(float(values[row])) if row < len(values) else ""
