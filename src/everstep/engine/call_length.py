"""`CallLength`: how many steps one compiled call holds.

A call holds about a second of work at most, so that signals are handled in time, and its batches fit in memory. Where
each length is compiled separately, lengths come from a small fixed set, so that a remainder compiles nothing new. The
choice has no effect on logs or state: a step gives the same bits in a call of any length.
"""

LENGTHS = (100, 10, 1)
SECONDS_PER_CALL = 1.0
BYTES_PER_CALL = 64 * 2**20


class CallLength:
    """Plans the lengths of calls; starts with single steps, until one of them was timed.

    Args:
      lengths: The allowed lengths, long ones first; None for any length up to the longest.
    """

    def __init__(self, lengths: tuple[int, ...] | None = LENGTHS) -> None:
        self._lengths = lengths
        self._longest = 1
        self._batch_bytes = 1
        self._calls = 0

    @property
    def measuring(self) -> bool:
        """Whether the next call should be timed: the second one counts, since the first one compiles."""
        return self._calls < 2

    @property
    def is_first(self) -> bool:
        """Whether no call was timed yet."""
        return self._calls == 0

    def set_batch_bytes(self, size: int) -> None:
        """Sets the size of a batch in bytes."""
        self._batch_bytes = max(size, 1)

    def record(self, seconds: float) -> None:
        """Records the duration of a single step while `measuring`."""
        self._calls += 1
        if not self.measuring:
            self._longest = int(SECONDS_PER_CALL / max(seconds, 1e-9))

    def length(self, window: int, left: int) -> int:
        """Returns how many of the `left` steps of a window the next call holds.

        A fixed length is used only if the window itself is at least that long: compiling a length for a remainder
        would cost more than running the remainder step by step.
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
