"""The optimizers that a task or a model keeps in its attributes, beside the one that the loop hands to its steps."""

from collections.abc import Iterator, Mapping
from typing import Any

import keras


def held_optimizers(*owners: Any) -> list[keras.Optimizer]:
    """Returns the optimizers in the attributes of objects, or in lists and dicts there, each once; None is skipped.

    An owner that is an optimizer itself is among them.
    """
    found: dict[int, keras.Optimizer] = {}
    for owner in owners:
        if owner is not None:
            inside = owner if isinstance(owner, keras.optimizers.Optimizer) else vars(owner)
            found |= {id(one): one for one in _optimizers(inside)}
    return list(found.values())


def _optimizers(value: Any) -> Iterator[keras.Optimizer]:
    if isinstance(value, keras.optimizers.Optimizer):
        yield value
    elif isinstance(value, Mapping):
        for item in list(value.values()):
            yield from _optimizers(item)
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _optimizers(item)
