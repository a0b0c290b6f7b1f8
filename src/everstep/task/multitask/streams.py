"""Combines the streams of several tasks into one; three classes differ in which tasks they read next.

The position consists of the number of combined batches and the position of every part, so a combined stream resumes as
exactly as its parts do.
"""

import abc
import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from everstep.data import Position, Stream, nest, randomness
from everstep.errors import UsageError
from everstep.types import Batch, StreamState

Check = Callable[[str, Batch], None]
"""Checks a batch of a task on the host, and may raise."""

_STEPS_PER_DRAW = 1024  # steps whose random numbers are drawn together


class TaskSampler:
    """Draws tasks with a probability proportional to `weight ** exponent(step)`.

        sampler = TaskSampler([3.0, 1.0], lambda step: 1.0, seed=0)
        sampler.draw(17)  # 0 in three of four steps, else 1

    Args:
      weights: The weight of each task, above 0.
      exponent: Returns the exponent for a step.
      seed: The seed; it determines the draw of each step.
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
        """Returns the random number of a step, from 0 to below 1."""
        piece, index = divmod(step, _STEPS_PER_DRAW)
        if self._drawn is None or self._drawn[0] != piece:
            # Negative keys: those from 0 on are used for the order of samples in each epoch.
            self._drawn = piece, randomness.generator(self._seed, -1 - piece).random(_STEPS_PER_DRAW)
        return float(self._drawn[1][index])


# -- combined batches -------------------------------------------------------------------------------------------------

# A compiled step needs a nesting that never changes. A combined batch is `(features, (task, rest, others))`. It has
# places, each for batches of one structure: tasks whose batches have the same structure share a place, so that two
# tasks on the same kind of data need no more memory than one. `features` and `rest` are the batch in the first place,
# split so that the features are where a model expects them. `others` are the batches in the further places, and `task`
# holds, once per sample, the index of the task that counts.


@dataclasses.dataclass(frozen=True)
class Layout:
    """The places of the tasks' batches in a combined batch.

    Attributes:
      names: The names of the tasks.
      places: For each task, the number of its place.
      blanks: For each place, a batch of zeros that fills it while it is not used.
    """

    names: tuple[str, ...]
    places: tuple[int, ...]
    blanks: tuple[Batch, ...]

    @classmethod
    def of(cls, examples: Mapping[str, Batch], together: bool) -> "Layout":
        """Returns the layout for batches like the examples.

        Args:
          examples: A batch of each task.
          together: Whether a combined batch holds a batch of every task, instead of one task.
        """
        forms: list[Any] = []
        places, blanks = [], []
        for name, batch in examples.items():
            form = name if together else _structure(batch)
            if form not in forms:
                forms.append(form)
                blanks.append(nest.map_leaves(np.zeros_like, batch))
            places.append(forms.index(form))
        return cls(tuple(examples), tuple(places), tuple(blanks))

    def pack(self, batches: Mapping[str, Batch]) -> Batch:
        """Returns a combined batch of the one task that counts, or of all tasks."""
        filled = list(self.blanks)
        for name, batch in batches.items():
            filled[self.places[self.names.index(name)]] = batch
        features, rest = _cut(filled[0])
        samples = len(nest.flatten(features)[0])
        task = np.full(samples, self.names.index(next(iter(batches))), np.int32)
        return features, (task, rest, tuple(filled[1:]))

    def unpack(self, combined: Batch) -> tuple[Any, dict[str, Batch]]:
        """Returns the index of the task that counts, as a scalar, and the batch in the place of every task."""
        features, (task, rest, others) = combined
        filled = [features if rest is None else (features, *rest), *others]
        return task[0], {name: filled[place] for name, place in zip(self.names, self.places, strict=True)}


def _structure(batch: Batch) -> Any:
    return repr(nest.structure(batch)), [(leaf.shape, leaf.dtype) for leaf in nest.flatten(batch)]


def _cut(batch: Batch) -> tuple[Any, tuple | None]:
    """Returns the features and the rest of a batch; None if it has only features."""
    if isinstance(batch, list | tuple) and 1 <= len(batch) <= 3:
        return batch[0], tuple(batch[1:])
    return batch, None


# -- combined streams -------------------------------------------------------------------------------------------------


class CombinedStream(Stream):
    """Batches of several tasks in one layout.

    Args:
      parts: The streams of the tasks, by name.
      together: Whether a combined batch holds a batch of every task.
      check: Called with the name of a task and each of its batches.
    """

    def __init__(self, parts: Mapping[str, Stream], *, together: bool, check: Check = lambda name, batch: None) -> None:
        super().__init__(repeat=False)
        self._parts, self._check = dict(parts), check
        self.layout = Layout.of({name: _first(name, part) for name, part in parts.items()}, together)
        self._taken = dict.fromkeys(self._parts, 0)
        self._beginning = self._handed_out = self._now()

    @abc.abstractmethod
    def _due(self, number: int) -> Sequence[str]:
        """Returns the tasks whose batches the combined batch of this number contains; none at the end."""

    @property
    def epoch_never_ends(self) -> bool:
        """Whether the stream, which is one epoch, never ends."""
        return all(part.never_ends for part in self._parts.values())

    @property
    def is_single_pass(self) -> bool:
        """True: it has one epoch, which ends where its parts do."""
        return True

    @property
    def sources(self) -> Mapping[str, Stream]:
        """The streams of the tasks."""
        return self._parts

    @property
    def limits_each_source(self) -> bool:
        """Whether each part has its own limit of batches: always."""
        return True

    @property
    def notes(self) -> Sequence[str]:
        """What the log should say about the data of each task."""
        return [f"{name}: {note}" for name, part in self._parts.items() for note in part.notes]

    @property
    def why_not_exact(self) -> str:
        """Why which parts are not exact."""
        return "; ".join(f"{name}: {part.why_not_exact}" for name, part in self._parts.items() if part.why_not_exact)

    def open(self, epoch: int, batch: int) -> Iterator[Batch]:
        """Yields combined batches from the current positions of the parts."""
        while names := self._due(batch):
            try:
                # All parts are peeked at before one is advanced: an error leaves every part unchanged.
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
        """Moves to a position that `state` returned, or to the beginning: `{"epoch": 0, "batch": 0}`.

        Raises:
          UsageError: The position is not one of this stream, or a part cannot move there.
        """
        own = {key: value for key, value in state.items() if key != "parts"}
        position = Position.of(own)
        if own == super().state():
            return
        parts = state.get("parts", self._beginning if position == (0, 0) else {})
        if set(parts) != set(self._parts):
            raise UsageError(
                f"the saved position belongs to the tasks {', '.join(sorted(parts)) or '(none)'}, but the tasks are "
                f"{', '.join(sorted(self._parts))}",
                remedy="train the tasks that the run was started with, or start a new run",
            )
        for name, part in self._parts.items():
            part.restore(parts[name]["position"])
            self._taken[name] = parts[name]["taken"]
        self._handed_out = self._now()
        super().restore(own)

    def _now(self) -> dict[str, Any]:
        return {
            name: {"taken": self._taken[name], "position": dict(part.state())} for name, part in self._parts.items()
        }


class JointStream(CombinedStream):
    """A batch of every task each time; ends with the first task that ends."""

    def __init__(self, parts: Mapping[str, Stream], check: Check = lambda name, batch: None) -> None:
        super().__init__(parts, together=True, check=check)

    def _due(self, number: int) -> Sequence[str]:
        return list(self._parts)


class InterleavedStream(CombinedStream):
    """A batch of the task that the sampler draws; ends when the data of that task has ended.

    The draw depends on the number of the combined batch, which is the step unless a batch was skipped.
    """

    def __init__(
        self, parts: Mapping[str, Stream], sampler: TaskSampler, check: Check = lambda name, batch: None
    ) -> None:
        super().__init__(parts, together=False, check=check)
        self._sampler, self._names = sampler, list(parts)

    def _due(self, number: int) -> Sequence[str]:
        return [self._names[self._sampler.draw(number)]]


class RoundsStream(CombinedStream):
    """A batch of each task in turn, until all have ended, so that a shortened evaluation has batches of each.

    Args:
      parts: The streams of the tasks, by name.
      limits: The number of batches of each task; None for all.
      check: Called with the name of a task and each of its batches.
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
    def epoch_never_ends(self) -> bool:
        """Whether the stream, which is one epoch, never ends."""
        return any(part.never_ends and self._limits[name] is None for name, part in self._parts.items())

    def _due(self, number: int) -> Sequence[str]:
        for name in sorted(self._parts, key=lambda name: self._taken[name]):  # equal counts in the order of the tasks
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
        raise UsageError("the dataset is empty", key=f"task {name!r}", remedy="provide at least one batch") from None
