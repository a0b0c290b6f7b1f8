"""The batches that are evaluated: labels and predictions with the ids of their samples."""

import array
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from everstep.errors import UsageError
from everstep.evaluation import arrays


class SampleBatch(NamedTuple):
    """Some samples and what the model said of them; the first axis of every array counts the samples.

    Attributes:
      ids: One id per sample (text, bytes or numbers), or None in every batch: then samples are counted from 0.
      y_true: Labels, as arrays of any nesting.
      y_pred: The model's answers.
      inputs: What the model saw, so that a reader can see it too; or None.
      columns: Further facts about the samples by name, one value each: to slice a report by; or None.
    """

    ids: Any
    y_true: Any
    y_pred: Any
    inputs: Any = None
    columns: Mapping[str, Any] | None = None


class CheckedBatch(NamedTuple):
    """A batch in host arrays whose parts fit together."""

    first_row: int
    ids: list[str]
    y_true: Any
    y_pred: Any
    inputs: Any
    columns: dict[str, list[Any]]


class Reader:
    """Checks batch after batch, and counts the samples.

    Attributes:
      rows: How many samples were read.
    """

    def __init__(self) -> None:
        self.rows = 0
        self._counted: bool | None = None
        self._columns: tuple[str, ...] | None = None
        self._hashes = array.array("q")

    def repeated_ids(self) -> int:
        """Returns how many samples have an id that an earlier one has, by the ids' hashes: eight bytes each."""
        hashes = np.sort(np.frombuffer(self._hashes, np.int64))
        return int((hashes[1:] == hashes[:-1]).sum())

    def read(self, batch: Any) -> CheckedBatch:
        """Returns the batch, checked.

        Raises:
          UsageError: Its parts do not fit together, or not to the batches before.
        """
        ids, y_true, y_pred, inputs, columns = SampleBatch(*_parts(batch))
        y_true, y_pred = arrays.host(y_true), arrays.host(y_pred)
        size = arrays.rows(y_pred, "y_pred")
        if arrays.rows(y_true, "y_true") != size:
            where = f"the batch after sample {self.rows}"
            raise UsageError(f"{where} has {arrays.rows(y_true, 'y_true')} labels for {size} predictions")
        first_row, self.rows = self.rows, self.rows + size
        return CheckedBatch(
            first_row, self._ids(ids, first_row, size), y_true, y_pred, inputs, self._checked(columns, first_row, size)
        )

    def _ids(self, ids: Any, first_row: int, size: int) -> list[str]:
        if not size:
            return []
        if self._counted is not None and self._counted != (ids is None):
            raise UsageError(f"ids are there in some batches only; from sample {first_row} on, that changes")
        self._counted = ids is None
        if ids is None:
            return [str(row) for row in range(first_row, first_row + size)]
        found = [_text(value) for value in _values(ids)]
        if len(found) != size:
            raise UsageError(
                f"the batch after sample {first_row} holds {size} samples and {len(found)} ids: {ids!r:.80}"
            )
        self._hashes.extend(map(hash, found))
        return found

    def _checked(self, columns: Any, first_row: int, size: int) -> dict[str, list[Any]]:
        found = {str(name): [_plain(v) for v in _values(values)] for name, values in (columns or {}).items()}
        if not size:
            return {}
        self._columns = tuple(found) if self._columns is None else self._columns
        if tuple(found) != self._columns:
            raise UsageError(
                f"from sample {first_row} on the columns are {list(found)}, before they were {list(self._columns)}"
            )
        for name, values in found.items():
            if len(values) != size:
                raise UsageError(
                    f"column {name!r} has {len(values)} values for {size} samples, after sample {first_row}"
                )
        return found


def _parts(batch: Any) -> tuple[Any, ...]:
    if isinstance(batch, tuple | list) and 3 <= len(batch) <= 5:
        return tuple(batch)
    raise UsageError(
        f"a batch is (ids, y_true, y_pred, inputs, columns), the last two optional: received {type(batch).__name__}"
        + (f" of {len(batch)}" if isinstance(batch, tuple | list) else "")
    )


def _values(values: Any) -> list[Any]:
    """Returns one Python value per sample; a text is one value, not its letters."""
    if isinstance(values, str | bytes):
        return [values]
    if isinstance(values, list | tuple):
        return list(values)
    column = arrays.host_array(values)
    return column.reshape(-1).tolist() if column.ndim < 2 or column.shape[1:] == (1,) else list(column)


def _text(value: Any) -> str:
    """Returns an id as text; bytes are decoded."""
    plain = _plain(value)
    if plain is None:
        raise UsageError("an id is a text or a number: received None; leave ids out of every batch to count samples")
    return str(plain)


def _plain(value: Any) -> Any:
    if isinstance(value, bytes):
        return value.decode("utf-8", errors="backslashreplace")
    if isinstance(value, str):  # names of files may hold bytes that are no UTF-8, which no file format takes
        return value if value.isascii() else value.encode("utf-8", "backslashreplace").decode("utf-8")
    if value is None or isinstance(value, int | float):
        return value
    single = arrays.host_array(value)
    inside = single.reshape(-1).tolist()[0] if single.size == 1 else value
    if not isinstance(inside, str | bytes | int | float):
        raise UsageError(f"ids and columns hold one number or text per sample: received {value!r:.80}")
    return _plain(inside)
