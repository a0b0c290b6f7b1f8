"""What can be told of a Grain pipeline by looking at the steps it is made of, without reading from it.

Grain's `parents` are public; what a step was made with is not, so every look at that allows for its not being there.
"""

from collections.abc import Iterator
from typing import Any

from everstep.data.orphans import end_with_parent

ENDLESS = 2**48
"""A dataset of so many elements is one that repeats for ever: Grain says so by its largest number, or a part of it."""


def root(source: Any) -> Any:
    """Returns the last step of a pipeline: of a `DataLoader` that of the dataset which it makes."""
    return getattr(source, "_dataset", source)


def steps(node: Any) -> Iterator[Any]:
    """Yields a step and all that come before it."""
    yield node
    for before in _before(node):
        yield from steps(before)


def is_sparse(dataset: Any) -> bool:
    """Whether some of a `MapDataset`'s indices lead to no element, so that its length is only an upper bound."""
    return any(type(step).__name__ in ("FilterMapDataset", "FlatMapMapDataset") for step in steps(dataset))


def is_endless(node: Any) -> bool:
    """Whether a pipeline repeats itself for ever."""
    if hasattr(node, "__len__"):
        return len(node) >= ENDLESS
    kind = type(node).__name__
    if kind == "LimitIterDataset":
        return False
    if kind == "RepeatIterDataset" and getattr(node, "_num_epochs", 1) is None:
        return True
    before = _before(node)
    return bool(before) and all(map(is_endless, before))


def has_operations(node: Any) -> bool:
    """Whether a `DataLoader` has an operation of the old kind, a function over the whole iterator."""
    return any(type(step).__name__ == "_OperationIterDataset" for step in steps(node))


def end_workers_with_run(node: Any) -> None:
    """Lets worker processes notice that the run is gone: Grain's own would stay for ever when it was killed."""
    for step in steps(node):
        started = getattr(step, "_worker_init_fn", None)
        if type(step).__name__ == "ProcessPrefetchIterDataset" and not isinstance(started, _Start):
            step._worker_init_fn = _Start(started)


class _Start:
    """What a worker does first."""

    def __init__(self, then: Any) -> None:
        self._then = then

    def __call__(self) -> None:
        end_with_parent()
        if self._then is not None:
            self._then()


def _before(node: Any) -> list[Any]:
    inside = getattr(node, "_datasets", ())  # an interleave does not call them its parents
    return [*getattr(node, "parents", ()), *(inside if isinstance(inside, (list, tuple)) else ())]
