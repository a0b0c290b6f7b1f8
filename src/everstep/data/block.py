"""A stream's position, and several batches of it stacked for one call of an engine."""

import dataclasses
from typing import Any, NamedTuple

from everstep.data import nest
from everstep.types import StreamState


class Position(NamedTuple):
    """The batches handed out so far: `epoch` whole epochs and `batch` batches of the next."""

    epoch: int
    batch: int

    def state(self) -> StreamState:
        """Returns the position as the plain values a checkpoint stores."""
        return {"epoch": self.epoch, "batch": self.batch}


@dataclasses.dataclass(frozen=True)
class Block:
    """Several batches of one shape, stacked: what an engine runs in one call.

    Attributes:
      data: The batches' nesting; each leaf has the batches along a new first axis.
      count: How many batches there are.
      states: The stream's position after each of them.
    """

    data: Any
    count: int
    states: list[StreamState]

    def split(self, n: int) -> tuple["Block", "Block"]:
        """Returns the first `n` batches and the rest, both views of this block's memory.

        Raises:
          ValueError: One of the two parts would be empty.
        """
        if not 0 < n < self.count:
            raise ValueError(f"a block of {self.count} batches cannot be split after {n}")
        head, tail = slice(None, n), slice(n, None)
        return self._part(head, n), self._part(tail, self.count - n)

    def _part(self, which: slice, count: int) -> "Block":
        return Block(nest.map_leaves(lambda leaf: leaf[which], self.data), count, self.states[which])
