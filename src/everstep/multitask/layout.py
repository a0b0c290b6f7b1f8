"""Batches of several tasks in one nesting that never changes: a compiled step needs one.

A combined batch is `(features, (task, rest, others))`. It has places, each for batches of one form: tasks whose batches
look alike share a place, so that two tasks on the same kind of data need no more room than one. `features` and
`rest` are the batch in the first place; it is cut in two so that the features of a task stand where everyone looks for
those of a model. `others` are the batches in the further places, and `task` says, once per sample, which task counts.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any

import numpy as np

from everstep.data import nest
from everstep.types import Batch


@dataclasses.dataclass(frozen=True)
class Layout:
    """Where in a combined batch which task's batch is.

    Attributes:
      names: The tasks.
      places: For each task, the number of its place.
      blanks: For each place, what stands there while it is not needed.
    """

    names: tuple[str, ...]
    places: tuple[int, ...]
    blanks: tuple[Batch, ...]

    @classmethod
    def of(cls, examples: Mapping[str, Batch], together: bool) -> "Layout":
        """Returns the layout for batches like the examples.

        Args:
          examples: A batch of each task.
          together: Whether a combined batch holds one of every task, and not of one task only.
        """
        forms: list[Any] = []
        places, blanks = [], []
        for name, batch in examples.items():
            form = name if together else _form(batch)
            if form not in forms:
                forms.append(form)
                blanks.append(nest.map_leaves(np.zeros_like, batch))
            places.append(forms.index(form))
        return cls(tuple(examples), tuple(places), tuple(blanks))

    def pack(self, batches: Mapping[str, Batch]) -> Batch:
        """Returns a combined batch: of the one task that counts, or of all."""
        filled = list(self.blanks)
        for name, batch in batches.items():
            filled[self.places[self.names.index(name)]] = batch
        features, rest = _cut(filled[0])
        samples = len(nest.flatten(features)[0])
        task = np.full(samples, self.names.index(next(iter(batches))), np.int32)
        return features, (task, rest, tuple(filled[1:]))

    def unpack(self, combined: Batch) -> tuple[Any, dict[str, Batch]]:
        """Returns which task counts, as a scalar, and what stands in every task's place."""
        features, (task, rest, others) = combined
        filled = [features if rest is None else (features, *rest), *others]
        return task[0], {name: filled[place] for name, place in zip(self.names, self.places, strict=True)}


def _form(batch: Batch) -> Any:
    return repr(nest.structure(batch)), [(leaf.shape, leaf.dtype) for leaf in nest.flatten(batch)]


def _cut(batch: Batch) -> tuple[Any, tuple | None]:
    """Returns features and what else a batch has; None where it is features alone."""
    if isinstance(batch, list | tuple) and 1 <= len(batch) <= 3:
        return batch[0], tuple(batch[1:])
    return batch, None
