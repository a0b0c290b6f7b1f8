"""How many steps one call holds.

A call holds about a second of work at most, so that a signal is answered in time, and its batches fit in memory.
Where a length has to be compiled, lengths come from a small fixed set: an odd remainder compiles nothing new. The
choice never shows in logs or in the state: a step gives the same bits in a call of any length.
"""

LENGTHS = (100, 10, 1)
SECONDS_PER_CALL = 1.0
BYTES_PER_CALL = 64 * 2**20


class Pace:
    """Plans calls; starts with single steps, until it has seen how long one takes.

    Args:
      lengths: The lengths there may be, long ones first; None for any up to the longest.
    """

    def __init__(self, lengths: tuple[int, ...] | None = LENGTHS) -> None:
        self._lengths = lengths
        self._longest = 1
        self._batch_bytes = 1
        self._calls = 0

    @property
    def measuring(self) -> bool:
        """Whether the next call should be timed: the second one, for the first one compiles."""
        return self._calls < 2

    @property
    def is_first(self) -> bool:
        """Whether no call has been timed yet."""
        return self._calls == 0

    def batch_of(self, size: int) -> None:
        """Sets how many bytes a batch has."""
        self._batch_bytes = max(size, 1)

    def took(self, seconds: float) -> None:
        """Records how long a single step took while `measuring`."""
        self._calls += 1
        if not self.measuring:
            self._longest = int(SECONDS_PER_CALL / max(seconds, 1e-9))

    def length(self, window: int, left: int) -> int:
        """Returns how many steps the next call holds, of the `left` ones of a window.

        A fixed length serves only where it serves the whole window: compiling one for a remainder would cost more
        than running the remainder step by step.
        """
        fits = max(1, min(self._longest, BYTES_PER_CALL // self._batch_bytes))
        if self._lengths is None:
            return min(left, fits, LENGTHS[0])
        useful = []
        for length in self._lengths:
            if length <= min(fits, window):
                useful.append(length)
                window %= length
        return max((length for length in useful if length <= left), default=1)
