"""Further facts about the samples, from the evaluator: what a report is sliced by."""

from collections.abc import Iterator
from typing import Any

import numpy as np

from everstep.components.building import Components
from everstep.components.evaluator import EvaluatorBase
from everstep.data import nest
from everstep.errors import UsageError
from everstep.evaluation import SampleBatch


def with_columns(components: Components, batches: Iterator[SampleBatch]) -> Iterator[SampleBatch]:
    """Yields batches with what `get_columns` says of each of their samples; as they are, where it is not defined.

    Raises:
      UsageError: It fails, or does not return the same names for every sample.
    """
    evaluator = components.evaluator
    if type(evaluator).get_columns is EvaluatorBase.get_columns:
        yield from batches
        return
    done = 0
    for batch in batches:
        size = len(nest.flatten(batch.y_true)[0])
        with components.calling("evaluator", "get_columns"):
            columns = _columns(evaluator, batch, _ids(batch.ids, done, size))
        yield batch._replace(columns=columns)
        done += size


def _columns(evaluator: EvaluatorBase, batch: SampleBatch, ids: list[str]) -> dict[str, list[Any]]:
    found: dict[str, list[Any]] = {}
    for i, name in enumerate(ids):
        x, y = (nest.map_leaves(lambda leaf, i=i: leaf[i], part) for part in (batch.inputs, batch.y_true))
        one = evaluator.get_columns(x, y, name)
        if not isinstance(one, dict) or (i and one.keys() != found.keys()):
            wanted = f"a dict with the keys {', '.join(map(repr, found))}" if i else "a dict of numbers and texts"
            raise UsageError(f"get_columns returned {one!r:.80} for the sample {name!r}, expected {wanted}")
        for key, value in one.items():
            found.setdefault(key, []).append(value)
    return found


def _ids(ids: Any, first: int, size: int) -> list[str]:
    """Returns the ids as the rows have them; where there are none, samples are counted."""
    if ids is None:
        return [str(first + i) for i in range(size)]
    return [_text(value) for value in np.asarray(ids).reshape(-1).tolist()]


def _text(value: Any) -> str:
    return value.decode("utf-8", errors="backslashreplace") if isinstance(value, bytes) else str(value)
