"""One stream from those of several tasks; which of them are read next is what its three kinds differ in.

The position is a count of combined batches and that of every part, so that it resumes as exactly as the parts do.
"""

import abc
import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from everstep.data import nest, randomness
from everstep.data.stream import Stream
from everstep.errors import UsageError
from everstep.types import Batch, StreamState

Check = Callable[[str, Batch], None]
"""Looks at a task's batch on the host, and may raise."""

_AT_ONCE = 1024  # steps whose numbers are drawn together


class TaskSampler:
    """Draws tasks with probability `weight ** exponent(step)`, divided by the sum of those.

        sampler = TaskSampler([3.0, 1.0], lambda step: 1.0, seed=0)
        sampler.draw(17)  # 0 in three of four steps, else 1

    Args:
      weights: One above 0 for each task.
      exponent: Returns the power for a step.
      seed: With the step, decides the draw.
    """

    def __init__(self, weights: Sequence[float], exponent: Callable[[int], float], seed: int) -> None:
        self._weights = np.array(weights, np.float64)
        self._exponent, self._seed = exponent, seed
        self._drawn: tuple[int, np.ndarray] | None = None

    def probabilities(self, step: int) -> np.ndarray:
        """Returns the probability of each task at a step."""
        powers = (self._weights / self._weights.max()) ** self._exponent(step)
        return powers / powers.sum()

    def draw(self, step: int) -> int:
        """Returns the index of the task that a step trains."""
        upper = np.cumsum(self.probabilities(step))[:-1]
        return int(np.searchsorted(upper, self._number(step), side="right"))

    def _number(self, step: int) -> float:
        """Returns the step's number from 0 to below 1."""
        piece, index = divmod(step, _AT_ONCE)
        if self._drawn is None or self._drawn[0] != piece:
            # Keys from the top: those from 0 on belong to the orders of the epochs.
            self._drawn = piece, randomness.generator(self._seed, -1 - piece).random(_AT_ONCE)
        return float(self._drawn[1][index])


# -- combined batches -------------------------------------------------------------------------------------------------

# A compiled step needs one nesting that never changes. A combined batch is `(features, (task, rest, others))`. It has
# places, each for batches of one form: tasks whose batches look alike share a place, so that two tasks on the same kind
# of data need no more room than one. `features` and `rest` are the batch in the first place, split so that the features
# of a task are where those of a model are expected. `others` are the batches in the further places, and `task` says,
# once per sample, which task counts.


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


# -- combined streams -------------------------------------------------------------------------------------------------


class CombinedStream(Stream):
    """Batches of several tasks, each combined batch laid out in the same way.

    Args:
      parts: The tasks' streams.
      together: Whether a combined batch holds one of every task.
      check: Called with the name and the batch of a task whenever one is read.
    """

    def __init__(self, parts: Mapping[str, Stream], *, together: bool, check: Check = lambda name, batch: None) -> None:
        super().__init__(repeat=False)
        self._parts, self._check = dict(parts), check
        self.layout = Layout.of({name: _first(name, part) for name, part in parts.items()}, together)
        self._taken = dict.fromkeys(self._parts, 0)
        self._beginning = self._handed_out = self._now()

    @abc.abstractmethod
    def _due(self, number: int) -> Sequence[str]:
        """Returns the tasks whose batches the combined batch of that number is made of; none at the end."""

    @property
    def endless(self) -> bool:
        """Whether reading on never comes to an end."""
        return all(part.endless for part in self._parts.values())

    @property
    def sources(self) -> Mapping[str, Stream]:
        """The tasks' streams."""
        return self._parts

    @property
    def limits_parts(self) -> bool:
        """Each task's data has its own limit."""
        return True

    @property
    def guarantee(self) -> str:
        """The parts' own."""
        return "; ".join(f"{name}: {part.guarantee}" for name, part in self._parts.items() if part.guarantee)

    def open(self, epoch: int, batch: int) -> Iterator[Batch]:
        """Yields combined batches from where the parts are."""
        while names := self._due(batch):
            try:
                # All are looked at before one is taken: an error leaves every part where it was.
                batches = {name: self._parts[name].peek() for name in names}
            except StopIteration:
                return
            for name, value in batches.items():
                self._check(name, value)
            for name in names:
                next(self._parts[name])
                self._taken[name] += 1
            batch += 1
            yield self.layout.pack(batches)

    def __next__(self) -> Batch:
        batch = super().__next__()
        self._handed_out = self._now()
        return batch

    def state(self) -> StreamState:
        """Returns the position after the last batch handed out, and that of every part."""
        return {**super().state(), "parts": self._handed_out}

    def restore(self, state: StreamState) -> None:
        """Goes to a position that `state` once returned, or to the beginning: `{"epoch": 0, "batch": 0}`.

        Raises:
          UsageError: The state is not one of this stream, or a part cannot go there.
        """
        position = self._checked({key: value for key, value in state.items() if key != "parts"})
        if position == self._position:
            return
        parts = state.get("parts", self._beginning if position == (0, 0) else {})
        if set(parts) != set(self._parts):
            raise UsageError(
                f"the saved position is of the tasks {', '.join(sorted(parts)) or '(none)'}, but the tasks are "
                f"{', '.join(sorted(self._parts))}",
                remedy="train the tasks that the run was started with, or start a new run",
            )
        for name, part in self._parts.items():
            part.restore(parts[name]["position"])
            self._taken[name] = parts[name]["taken"]
        self._handed_out = self._now()
        self._move(position)

    def _now(self) -> dict[str, Any]:
        return {
            name: {"taken": self._taken[name], "position": dict(part.state())} for name, part in self._parts.items()
        }


class JointStream(CombinedStream):
    """A batch of every task each time; ends with the first that ends."""

    def __init__(self, parts: Mapping[str, Stream], check: Check = lambda name, batch: None) -> None:
        super().__init__(parts, together=True, check=check)

    def _due(self, number: int) -> Sequence[str]:
        return list(self._parts)


class InterleavedStream(CombinedStream):
    """A batch of the task that the sampler draws; ends when that one has ended.

    The draw depends on the number of the combined batch, which is the step's, unless a batch was left out.
    """

    def __init__(
        self, parts: Mapping[str, Stream], sampler: TaskSampler, check: Check = lambda name, batch: None
    ) -> None:
        super().__init__(parts, together=False, check=check)
        self._sampler, self._names = sampler, list(parts)

    def _due(self, number: int) -> Sequence[str]:
        return [self._names[self._sampler.draw(number)]]


class RoundsStream(CombinedStream):
    """A batch of each task in turn, until all have ended: an evaluation that is cut short has seen some of each.

    Args:
      parts: The tasks' streams.
      limits: How many batches of each; None for all.
      check: Called with the name and the batch of a task whenever one is read.
    """

    def __init__(
        self,
        parts: Mapping[str, Stream],
        limits: Mapping[str, int | None],
        check: Check = lambda name, batch: None,
    ) -> None:
        super().__init__(parts, together=False, check=check)
        self._limits = limits

    @property
    def endless(self) -> bool:
        """Whether reading on never comes to an end."""
        return any(part.endless and self._limits[name] is None for name, part in self._parts.items())

    def _due(self, number: int) -> Sequence[str]:
        for name in sorted(self._parts, key=lambda name: self._taken[name]):  # among equals in the order of the tasks
            if self._taken[name] != self._limits[name] and _has_more(self._parts[name]):
                return [name]
        return []


def _has_more(part: Stream) -> bool:
    try:
        part.peek()
    except StopIteration:
        return False
    return True


def _first(name: str, part: Stream) -> Batch:
    try:
        return part.peek()
    except StopIteration:
        raise UsageError("the dataset is empty", key=f"task {name!r}", remedy="give it data") from None
