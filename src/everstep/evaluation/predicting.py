"""Batches joined with what the model says of them; ids stay on the host."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from everstep.errors import UsageError
from everstep.evaluation import arrays
from everstep.evaluation.batch import SampleBatch


def predictions(
    predict: Callable[[Any], Any],
    batches: Iterable[Any],
    *,
    limit: int | None = None,
    index: Sequence[Any] | None = None,
) -> Iterator[SampleBatch]:
    """Yields each batch with the model's answer to its inputs, in order.

    Only the inputs are given to `predict`; labels and ids never leave the host. The last batch may be short.

    Args:
      predict: Any function from a batch of inputs to a batch of answers: `model.predict_on_batch`, a SavedModel's
        endpoint, an estimator's `predict`.
      batches: Items `(x, y)`, `(x, y, ids)` or `(x, y, ids, columns)`.
      limit: How many samples there are, for batches that have no end or begin again in the last one: what goes
        beyond is cut off.
      index: The ids in the order of the data. The third element of an item, if any, is then ignored: where data
        carry sample weights, they stand there.

    Raises:
      UsageError: An item is no such tuple, the answers do not fit the labels, or the batches or the index end before
        `limit` or each other.
    """
    done = 0
    for item in batches if limit != 0 else ():
        x, y, ids, columns = _parts(item)
        size = _size(y, limit, done)
        ids = ids if index is None else index[done : done + size]
        yield _joined(ids, y, predict(x), x, columns, size)
        done += size
        if done == limit:
            break
    _check_end(done, limit, index)


def _joined(ids: Any, y: Any, answer: Any, x: Any, columns: Any, size: int) -> SampleBatch:
    """Returns the first `size` samples; the whole batch stays as it is."""
    y_true, y_pred = arrays.host(y), arrays.host(answer)
    whole = arrays.rows(y_true, "the labels")
    if arrays.rows(y_pred, "the predictions") != whole:
        raise UsageError(f"predict returned {arrays.rows(y_pred, 'the predictions')} answers to a batch of {whole}")
    if size == whole:
        return SampleBatch(ids, y_true, y_pred, x, columns)
    cut = slice(size)
    few = {name: values[cut] for name, values in columns.items()} if columns else columns
    return SampleBatch(None if ids is None else ids[cut], arrays.at(y_true, cut), arrays.at(y_pred, cut), x, few)


def _parts(item: Any) -> tuple[Any, Any, Any, Any]:
    if not isinstance(item, tuple | list) or not 2 <= len(item) <= 4:
        raise UsageError(
            "a batch to predict is (x, y), (x, y, ids) or (x, y, ids, columns): received "
            f"{type(item).__name__}{f' of {len(item)}' if isinstance(item, tuple | list) else ''}"
        )
    x, y, ids, columns = (*item, None, None)[:4]
    return x, y, ids, columns


def _size(y: Any, limit: int | None, done: int) -> int:
    size = arrays.rows(arrays.host(y), "the labels")
    return size if limit is None else min(size, limit - done)


def _check_end(done: int, limit: int | None, index: Sequence[Any] | None) -> None:
    if limit is not None and done < limit:
        raise UsageError(f"the data ended after {done} samples, but {limit} were announced")
    if index is not None and len(index) != done:
        raise UsageError(f"the index has {len(index)} ids for {done} samples: it lists one id per sample, in order")
