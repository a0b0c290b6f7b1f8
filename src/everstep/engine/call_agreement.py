"""Which batches go into one call, where several processes make it together: what the first process decides.

How many steps a call holds depends on clocks (`call_length.py`), and so does when a stop is requested. A call that some
processes make with other batches, or not at all, would never end. So the thread of the first process broadcasts the
length of every piece that it reads, and the others read pieces of these lengths; and before each call all processes
agree that no stop is requested.
"""

import itertools
from collections.abc import Callable

from everstep.errors import TrainingError
from everstep.gang import Gang, current_gang, is_true_of_any

_beginnings = itertools.count()


class CallAgreement:
    """The lengths of one feed's pieces; all processes open the same feeds in the same order.

    For a single process everything is as it says itself.

    Args:
      gives_up: Whether nobody takes pieces any more; polled while waiting for the first process.
    """

    def __init__(self, gives_up: Callable[[], bool]) -> None:
        self.gang: Gang = current_gang()
        self._gives_up = gives_up
        self._number = self._read = self._taken = 0

    def begin(self) -> None:
        """Starts again, at another position of the stream."""
        self._number = next(_beginnings)
        self._read, self._taken = 0, 0  # pieces

    @property
    def follows(self) -> bool:
        """Whether another process decides."""
        return not self.gang.is_first

    def next_length(self) -> int | None:
        """Returns how many batches the next piece has, as the first process says; 0 for the end, None on giving up."""
        found = self.gang.receive(f"{self._number}/read/{self._read}", self._gives_up)
        return None if found is None else int(found)

    def on_read(self, length: int) -> None:
        """Notes the length of a piece that was read, or 0 at the end of the data; the first process broadcasts it."""
        if self.gang.is_first:
            self.gang.broadcast(f"{self._number}/read/{self._read}", length)
        self._read += 1

    def on_taken(self) -> None:
        """Notes that a piece was taken, on all processes: its length is not needed any more."""
        self.gang.forget(f"{self._number}/read/{self._taken}")
        self._taken += 1

    def cut(self, length: int) -> int:
        """Returns where a piece is cut that is longer than the steps to run: where the first process does."""
        return int(self.gang.share("the length of a call", length))

    def stops(self, requested: Callable[[], bool]) -> bool:
        """Whether a stop is requested of any process, which all know then; for a single process its loop knows."""
        if self.gang.size == 1 or not is_true_of_any(self.gang, "a call", requested()):
            return False
        self.gang.requested_stop(at_once=True)  # else a process could take the missing batches for the end of its data
        return True

    def require(self, expected: int, count: int) -> None:
        """Refuses data of which this process reads another number of batches than the first one.

        Raises:
          TrainingError: The numbers differ.
        """
        if self.follows and count != expected:
            raise TrainingError(
                f"the data differs between the processes: rank 0 reads {expected} batches of one shape here, and "
                f"rank {self.gang.rank} reads {count}",
                remedy="every process must read the same data in the same order",
            )
