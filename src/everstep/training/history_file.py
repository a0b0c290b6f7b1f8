"""`history.csv` of a job: a row per epoch, counted from 0 over all attempts."""

import csv
import io
from collections.abc import Mapping, Sequence
from typing import Any

import keras
import numpy as np

from everstep.data.record_arguments import shown
from everstep.errors import UsageError


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


def as_history(history: Any) -> keras.callbacks.History:
    """Returns what a loop of the user's own has written down as Keras's object.

    Args:
      history: A History, which stays as it is; or numbers by metric, one per epoch: a dictionary, a DataFrame.

    Raises:
      UsageError: It is neither.
    """
    if isinstance(history, keras.callbacks.History):
        return history
    if not hasattr(history, "keys"):
        raise UsageError(f'history: received {shown(history)}, expected numbers by metric, as {{"loss": [0.5, 0.4]}}')
    made = keras.callbacks.History()
    made.history = {str(name): _numbers(str(name), history[name]) for name in history.keys()}  # noqa: SIM118
    made.epoch = list(range(max(map(len, made.history.values()), default=0)))
    return made


def _numbers(name: str, values: Any) -> list[float]:
    try:
        return [float(value) for value in np.asarray(values, np.float64).reshape(-1).tolist()]
    except (TypeError, ValueError):
        raise UsageError(f"history: {name} has {shown(values)}, expected a number per epoch") from None


def _cell(values: Sequence[Any], row: int) -> str:
    """Returns a value; empty for a metric that some epochs do not have."""
    return repr(float(values[row])) if row < len(values) else ""
