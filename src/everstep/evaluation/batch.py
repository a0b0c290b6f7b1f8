"""Batches to evaluate: `predictions` joins batches of data with a model's outputs, `BatchReader` checks them.

Ids and labels stay on the host.
"""

import array
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from everstep.data import host_array
from everstep.errors import UsageError
from everstep.evaluation import arrays


class SampleBatch(NamedTuple):
    """Some samples and the model's predictions for them; the first axis of every array counts the samples.

    Attributes:
      ids: One id per sample (text, bytes or numbers); or None in every batch, to number samples from 0.
      y_true: Labels, as arrays in any nesting.
      y_pred: The model's predictions.
      inputs: The model's inputs, to show in a report; or None.
      columns: Further columns by name, with one value per sample, to slice a report by; or None.
    """

    ids: Any
    y_true: Any
    y_pred: Any
    inputs: Any = None
    columns: Mapping[str, Any] | None = None


class CheckedBatch(NamedTuple):
    """A batch of host arrays that has been checked."""

    first_row: int
    ids: list[str]
    y_true: Any
    y_pred: Any
    inputs: Any
    columns: dict[str, list[Any]]


class BatchReader:
    """Checks batch after batch, and counts the samples.

    Attributes:
      rows: The number of samples read so far.
    """

    def __init__(self) -> None:
        self.rows = 0
        self._counted: bool | None = None
        self._columns: tuple[str, ...] | None = None
        self._hashes = array.array("q")

    def repeated_ids(self) -> int:
        """Returns the number of samples whose id repeats an earlier one, by hashes of eight bytes."""
        hashes = np.sort(np.frombuffer(self._hashes, np.int64))
        return int((hashes[1:] == hashes[:-1]).sum())

    def read(self, batch: Any) -> CheckedBatch:
        """Returns the batch, checked.

        Raises:
          UsageError: Its parts do not fit together, or do not match earlier batches.
        """
        ids, y_true, y_pred, inputs, columns = SampleBatch(*_parts(batch))
        y_true, y_pred = arrays.host(y_true), arrays.host(y_pred)
        size = arrays.rows(y_pred, "y_pred")
        if arrays.rows(y_true, "y_true") != size:
            labels = arrays.rows(y_true, "y_true")
            raise UsageError(
                f"the batch after sample {self.rows} has {labels} labels for {size} predictions", key="y_true"
            )
        first_row, self.rows = self.rows, self.rows + size
        return CheckedBatch(
            first_row, self._ids(ids, first_row, size), y_true, y_pred, inputs, self._checked(columns, first_row, size)
        )

    def _ids(self, ids: Any, first_row: int, size: int) -> list[str]:
        if not size:
            return []
        if self._counted is not None and self._counted != (ids is None):
            raise UsageError(f"only some batches have ids; it changes from sample {first_row} on", key="ids")
        self._counted = ids is None
        if ids is None:
            return [str(row) for row in range(first_row, first_row + size)]
        found = [_text(value) for value in _values(ids)]
        if len(found) != size:
            reason = f"the batch after sample {first_row} has {size} samples and {len(found)} ids"
            raise UsageError(reason, key="ids", received=ids)
        self._hashes.extend(map(hash, found))
        return found

    def _checked(self, columns: Any, first_row: int, size: int) -> dict[str, list[Any]]:
        found = {str(name): [_plain(v) for v in _values(values)] for name, values in (columns or {}).items()}
        if not size:
            return {}
        self._columns = tuple(found) if self._columns is None else self._columns
        if tuple(found) != self._columns:
            reason = f"from sample {first_row} on the columns are {list(found)}, before they were {list(self._columns)}"
            raise UsageError(reason, key="columns")
        for name, values in found.items():
            if len(values) != size:
                reason = f"has {len(values)} values for {size} samples, after sample {first_row}"
                raise UsageError(reason, key=f"columns.{name}")
        return found


def _parts(batch: Any) -> tuple[Any, ...]:
    if isinstance(batch, tuple | list) and 3 <= len(batch) <= 5:
        return tuple(batch)
    reason = f"a batch is (ids, y_true, y_pred, inputs, columns), the last two optional, not a {_length(batch)}"
    raise UsageError(reason, key="batches")


def _length(item: Any) -> str:
    return f"{type(item).__name__}{f' of {len(item)}' if isinstance(item, tuple | list) else ''}"


def _values(values: Any) -> list[Any]:
    """Returns one Python value per sample; a text is one value."""
    if isinstance(values, str | bytes):
        return [values]
    if isinstance(values, list | tuple):
        return list(values)
    column = host_array(values)
    return column.reshape(-1).tolist() if column.ndim < 2 or column.shape[1:] == (1,) else list(column)


def _text(value: Any) -> str:
    """Returns an id as text; bytes are decoded."""
    plain = _plain(value)
    if plain is None:
        raise UsageError(
            "an id is a text or a number", key="ids", received=None, remedy="pass no ids at all to number samples"
        )
    return str(plain)


def _plain(value: Any) -> Any:
    if isinstance(value, bytes):
        return value.decode("utf-8", errors="backslashreplace")
    if isinstance(value, str):  # file names may contain bytes that are not UTF-8, which no file format accepts
        return value if value.isascii() else value.encode("utf-8", "backslashreplace").decode("utf-8")
    if value is None or isinstance(value, int | float):
        return value
    single = host_array(value)
    inside = single.reshape(-1).tolist()[0] if single.size == 1 else value
    if not isinstance(inside, str | bytes | int | float):
        raise UsageError("ids and columns have one number or text per sample", received=value)
    return _plain(inside)


def predictions(
    predict: Callable[[Any], Any],
    batches: Iterable[Any],
    *,
    limit: int | None = None,
    index: Sequence[Any] | None = None,
) -> Iterator[SampleBatch]:
    """Yields each batch with the model's predictions, in order.

    Only the inputs are passed to `predict`; labels and ids never leave the host. The last batch may be short.

    Args:
      predict: Any function from a batch of inputs to a batch of predictions: `model.predict_on_batch`, a SavedModel's
        endpoint, an estimator's `predict`.
      batches: Items `(x, y)`, `(x, y, ids)` or `(x, y, ids, columns)`.
      limit: The number of samples, for batches that never end or start over; the rest is cut off.
      index: The ids in the order of the data. The third element of an item is then ignored, since it may hold sample
        weights.

    Raises:
      UsageError: An item is no such tuple, the predictions do not fit the labels, or the batches, `index` and `limit`
        differ in length.
    """
    done = 0
    for item in batches if limit != 0 else ():
        if not isinstance(item, tuple | list) or not 2 <= len(item) <= 4:
            reason = f"a batch to predict is (x, y), (x, y, ids) or (x, y, ids, columns), not a {_length(item)}"
            raise UsageError(reason, key="batches")
        x, y, ids, columns = (*item, None, None)[:4]
        size = arrays.rows(arrays.host(y), "the labels")
        size = size if limit is None else min(size, limit - done)
        ids = ids if index is None else index[done : done + size]
        yield _joined(ids, y, predict(x), x, columns, size)
        done += size
        if done == limit:
            break
    if limit is not None and done < limit:
        raise UsageError(f"the data ended after {done} samples", key="limit", received=limit)
    if index is not None and len(index) != done:
        reason = f"has {len(index)} ids for {done} samples, must list one id per sample, in order"
        raise UsageError(reason, key="index")


def _joined(ids: Any, y: Any, answer: Any, x: Any, columns: Any, size: int) -> SampleBatch:
    """Returns the first `size` samples of a batch; a complete batch is returned unchanged."""
    y_true, y_pred = arrays.host(y), arrays.host(answer)
    whole = arrays.rows(y_true, "the labels")
    if arrays.rows(y_pred, "the predictions") != whole:
        raise UsageError(
            f"returned {arrays.rows(y_pred, 'the predictions')} predictions for a batch of {whole}", key="predict"
        )
    if size == whole:
        return SampleBatch(ids, y_true, y_pred, x, columns)
    cut = slice(size)
    few = {name: values[cut] for name, values in columns.items()} if columns else columns
    return SampleBatch(None if ids is None else ids[cut], arrays.at(y_true, cut), arrays.at(y_pred, cut), x, few)
