"""`CallLength`: how many steps one compiled call holds.

A call holds about a second of work at most, so that signals are handled in time, and its batches fit in memory. The
choice has no effect on logs or state: a step gives the same bits in a call of any length.

Where each length is compiled separately, on JAX, there are at most `LENGTHS` of them:

- 1, the only one until steps were timed, and until a longer one saves more time than it takes to compile;
- the length with which the announced window needs the fewest calls: an epoch of 468 steps is 3 calls of 156, not 4 of
  100, 6 of 10 and 8 single ones; two such lengths, for runs whose windows alternate;
- `SHORT`, for the remainders of windows, such as the rest of an epoch.

Nothing else is compiled, however many other windows follow: they are made of these lengths.
"""

import dataclasses
import math
import threading
from typing import Literal

LoopLengths = Literal["compiled", "any", "eager", "single"]
"""What is known of the lengths of an engine's calls; see `CallLength`."""

LENGTHS = 4
"""The most lengths that are compiled for one step, beside that of a batch with another shape."""
WINDOW_LENGTHS = 2
"""How many of them are made for windows."""
SHORT = 10
"""The length for remainders."""

SECONDS_PER_CALL = 1.0
BYTES_PER_CALL = 16 * 2**20  # larger blocks are new memory for each call, which the system provides page by page
STEPS_PER_CALL = 200  # where batches are copied to the device; longer calls gain nothing, but keep more memory busy
ANY_STEPS_PER_CALL = 100  # where nothing is compiled for a length
BYTES_PER_EAGER_CALL = 2 * 2**20  # where Python runs each step: what is read at once stays in the processor's cache
TIMED_CALLS = 3


@dataclasses.dataclass
class Pace:
    """How fast single steps are, measured in the first calls; the quickest count.

    Attributes:
      seconds: The duration of a single step.
      overhead: The time of a call in which Python is busy, which longer calls save.
      compile_seconds: The duration of the first call, which compiles.
    """

    seconds: float = math.inf
    overhead: float = math.inf
    compile_seconds: float = 0.0
    calls: int = 0

    @property
    def measuring(self) -> bool:
        """Whether the next call should be timed: the first one compiles, and the next ones count."""
        return self.calls <= TIMED_CALLS

    def record(self, seconds: float, overhead: float | None = None) -> None:
        """Records the duration of a single step while `measuring`; `overhead` is all of it if None."""
        if self.calls == 0:
            self.compile_seconds = seconds
        else:
            self.seconds = min(self.seconds, seconds)
            self.overhead = min(self.overhead, seconds if overhead is None else overhead)
        self.calls += 1


def most_steps(batch_bytes: int) -> int:
    """Returns the most steps of a call of any length, with batches of so many bytes."""
    return max(1, min(BYTES_PER_CALL // max(batch_bytes, 1), ANY_STEPS_PER_CALL))


class CallLength:
    """Plans the lengths of calls; starts with single steps, until some were timed.

    Args:
      loop: `compiled` if each length is compiled separately; `any` if a call may have any length; `eager` if Python
        runs each step, on the CPU; `single` if each step is a call.
      pace: The measured speed, which several plans may share; by default it is measured for this one.
    """

    def __init__(self, loop: LoopLengths = "compiled", pace: Pace | None = None) -> None:
        self._loop: LoopLengths = loop
        self.pace = Pace() if pace is None else pace
        self._batch_bytes = 1
        self._most = STEPS_PER_CALL
        self._lengths: set[int] = set()  # those in use
        self._steps_left: int | None = None
        self._extra_calls = 0  # that a length which is not compiled would have saved so far
        self._lock = threading.Lock()  # the feed's thread plans, and so does the loop's

    @property
    def measuring(self) -> bool:
        """Whether the next call should be timed."""
        return self.pace.measuring

    @property
    def is_first(self) -> bool:
        """Whether no call was timed yet."""
        return self.pace.calls == 0

    @property
    def lengths(self) -> list[int]:
        """The lengths in use so far."""
        return sorted(self._lengths)

    def record(self, seconds: float, overhead: float | None = None) -> None:
        """Records the duration of a single step while `measuring`; see `Pace.record`."""
        self.pace.record(seconds, overhead)

    def set_batch(self, size: int, on_device: bool = False) -> None:
        """Sets how many bytes of a batch are copied to the device for a step.

        Args:
          size: The number of bytes.
          on_device: Whether the samples are on the device already, and only their numbers are copied.
        """
        self._batch_bytes = max(size, 1)
        self._most = BYTES_PER_CALL if on_device else STEPS_PER_CALL

    def expect(self, steps_left: int | None) -> None:
        """Announces how many steps will be run in windows like the next one; None if that is unknown."""
        self._steps_left = steps_left

    def use_single_steps(self) -> None:
        """Makes each step a call from now on."""
        self._loop = "single"

    def add(self, length: int) -> None:
        """Uses calls of this length from now on, whether that saves more time than compiling it takes or not."""
        self._lengths.add(length)

    @property
    def longest(self) -> int:
        """The most steps that a call may hold."""
        if self._loop == "single" or self.measuring:
            return 1
        most = ANY_STEPS_PER_CALL if self._loop in ("any", "eager") else self._most
        in_time = int(SECONDS_PER_CALL / max(self.pace.seconds, 1e-9))
        most_bytes = BYTES_PER_EAGER_CALL if self._loop == "eager" else BYTES_PER_CALL
        return max(1, min(in_time, most_bytes // self._batch_bytes, most))

    @property
    def readable(self) -> int:
        """The number of batches to read at once for calls that hold fewer, where that costs as much as one."""
        return max(1, min(SHORT, BYTES_PER_CALL // self._batch_bytes))

    def fits(self, batches: int) -> bool:
        """Whether so many batches could be copied to the device for one call."""
        return self._most == STEPS_PER_CALL and batches * self._batch_bytes <= BYTES_PER_CALL

    def length(self, window: int, left: int) -> int:
        """Returns how many of the `left` steps of a window the next call holds; the call will be made."""
        with self._lock:
            length, best = self._choose(window, left)
            if self._loop == "compiled":
                if length not in self._lengths:
                    self._lengths.add(length)
                    self._extra_calls = 0
                elif length < best:
                    self._extra_calls += 1
            return length

    def planned(self, window: int, left: int) -> int:
        """Returns what `length` would return; whether the call will be made is not known yet."""
        return self._choose(window, left)[0]

    def _choose(self, window: int, left: int) -> tuple[int, int]:
        """Returns the length of the next call, and the best one for the window.

        Example: the window is an epoch of 468 steps, and a call may hold 200. The best length is 156, with 3 calls.

            468 steps left, 156 is compiled, or pays, or nothing is compiled    156
            468 steps left, only 1 is compiled, and 156 does not pay yet        1; each such call makes 156 pay sooner
            68 steps left (after a resume), nothing is compiled                 68
            68 steps left, 1 and 156 are compiled                               10 (SHORT) once that pays, else 1
        """
        longest = self.longest
        if longest == 1 or self._loop != "compiled":
            return min(left, longest), longest
        best = length_with_fewest_calls(window, longest)
        if best <= left and self._may_use(best, window):
            return best, best
        if not self._lengths:  # something must be compiled in any case
            return length_with_fewest_calls(left, longest), best
        usable = [length for length in self._lengths if length <= min(left, longest)]
        # Where the best length is about to be compiled, it comes first: with it there may be no remainder.
        is_settled = best in self._lengths or not self._may_use(best, window)
        if min(left, longest) >= SHORT and self._has_paid_off(1 if is_settled else 2):
            usable.append(SHORT)
        return max(usable, default=1), best

    def _may_use(self, length: int, window: int) -> bool:
        """Whether a length is compiled, or compiling it takes less time than it saves."""
        if length in self._lengths or not self._lengths:
            return True
        if self._window_lengths >= WINDOW_LENGTHS:
            return False
        saved = self._calls(window, self._lengths) - self._calls(window, self._lengths | {length})
        if saved <= 0:
            return False
        windows = max(self._steps_left or 0, window) / window
        return saved * windows * self.pace.overhead >= self.pace.compile_seconds or self._has_paid_off()

    def _has_paid_off(self, times: int = 1) -> bool:
        """Whether a further length would have paid off by now, `times` times over.

        The calls made so far that it would have saved have taken as long as compiling it `times` times.
        """
        return self._extra_calls * self.pace.overhead >= times * self.pace.compile_seconds

    @property
    def _window_lengths(self) -> int:
        return len(self._lengths - {1, SHORT})

    def _calls(self, steps: int, lengths: set[int]) -> int:
        """Returns how many calls of these lengths, and of single steps, hold some steps."""
        calls = 0
        for length in sorted(lengths, reverse=True):
            if length <= self.longest:
                calls, steps = calls + steps // length, steps % length
        return calls + steps


def length_with_fewest_calls(window: int, longest: int) -> int:
    """Returns the length of calls with which a window needs the fewest, its remainder in single steps.

    Among equals it is the longest; it is at most `longest`.
    """
    best = min(window, longest)
    fewest = window // best + window % best
    for calls in range(window // best + 1, window + 1):  # of the longest length with which there are so many
        if calls >= fewest:
            break
        length = window // calls
        needed = window // length + window % length
        if needed < fewest:
            best, fewest = length, needed
    return best
