"""Where logging windows end: a function of the absolute step.

A save, a signal or a resume never opens or closes a window, so that a run that was interrupted logs the same
numbers at the same steps as one that was not.
"""

from collections.abc import Callable


class Windows:
    """Cuts training into windows.

    Args:
      steps_per_loop: The length of a window, or a function of the step at which it begins.
      interval: Windows also end at its multiples, where evaluations are, and count anew from there. None: no cuts.
    """

    def __init__(self, steps_per_loop: int | Callable[[int], int], interval: int | None = None) -> None:
        self._length = steps_per_loop if callable(steps_per_loop) else lambda step: steps_per_loop
        self._constant = None if callable(steps_per_loop) else steps_per_loop
        self._interval = interval

    def end(self, step: int) -> int:
        """Returns the end of the window that the step with index `step` belongs to."""
        begin = step - step % self._interval if self._interval else 0
        if self._constant:
            begin += (step - begin) // self._constant * self._constant
        while True:
            end = begin + max(1, self._length(begin))
            if self._interval:
                end = min(end, begin - begin % self._interval + self._interval)
            if end > step:
                return end
            begin = end

    def ends_at(self, step: int) -> bool:
        """Whether a window ends after `step` steps, so that the next step opens one."""
        return step == 0 or self.end(step - 1) == step
