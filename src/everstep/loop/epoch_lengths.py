"""Where epochs begin and end, in steps.

An epoch is one pass over the data, or `steps_per_epoch` of it. Where the two do not fit, a pass that ends inside an
epoch ends it, as in Keras: of 10 batches at 4 steps an epoch, epochs have 4, 4 and 2 steps, and so on; with more steps
than there are batches, an epoch is a pass.
"""

from everstep.loop.windows import Windows

OPEN = 2**40
"""The end of what has no end yet: more steps than anybody trains."""


class EpochLengths:
    """Which epoch a step belongs to; a function of the step, and of what is known of the data.

        lengths = EpochLengths(steps=4, batches=10)
        [lengths.end(step) for step in (0, 4, 8, 10)]  # [4, 8, 10, 14]

    Steps are counted by index: step 0 is the first. Data that does not say how many batches it has is counted by its
    first pass; until `counted`, an epoch without `steps` has no end.

    Args:
      steps: Steps of an epoch; None for a pass.
      batches: Batches of a pass; None where nobody knows, or there is no end.
      first_epoch: The epoch that step 0 belongs to.
    """

    def __init__(self, steps: int | None, batches: int | None = None, first_epoch: int = 0) -> None:
        self.steps, self.batches, self.first_epoch = steps, batches, first_epoch

    def counted(self, batches: int) -> None:
        """Learns how many batches a pass has."""
        self.batches = batches

    @property
    def length(self) -> int | None:
        """Steps of an epoch that is not cut short; None while nobody knows."""
        return self.steps if self.batches is None else min(self.steps or self.batches, self.batches)

    @property
    def is_regular(self) -> bool:
        """Whether all epochs have the same, known number of steps."""
        return self.length is not None and not (self.batches or 0) % self.length

    def number(self, step: int) -> int:
        """Returns the epoch that a step belongs to."""
        begun, rest = self._passes(step)
        in_pass = rest // self.length if self.length else 0
        return self.first_epoch + begun * self._per_pass() + in_pass

    def begin(self, epoch: int) -> int | None:
        """Returns the first step of an epoch; None while nobody knows."""
        epoch -= self.first_epoch
        if not epoch or self.length is None:
            return None if epoch else 0
        passes, rest = divmod(epoch, self._per_pass()) if self.batches else (0, epoch)
        return passes * (self.batches or 0) + rest * self.length

    def first(self, step: int) -> int:
        """Returns the first step of the epoch that a step belongs to."""
        rest = self._passes(step)[1]
        return step - (rest % self.length if self.length else rest)

    def end(self, step: int) -> int:
        """Returns the step behind the last one of the epoch that a step belongs to; `OPEN` while nobody knows."""
        if self.length is None:
            return OPEN
        begun, rest = self._passes(step)
        end = (rest // self.length + 1) * self.length
        return end if self.batches is None else begun * self.batches + min(end, self.batches)

    def done(self, step: int) -> int:
        """Returns how many steps of its epoch are done after `step` steps: all of them at its end, never none."""
        return step - self.first(step - 1) if step else 0

    def is_cut(self, step: int) -> bool:
        """Whether an epoch that ends after `step` steps has fewer than it was to have."""
        return self.steps is not None and self.done(step) < self.steps

    def _passes(self, step: int) -> tuple[int, int]:
        return divmod(step, self.batches) if self.batches else (0, step)

    def _per_pass(self) -> int:
        return -(-self.batches // (self.length or 1)) if self.batches else 0


class EpochWindows(Windows):
    """Windows that are epochs."""

    def __init__(self, lengths: EpochLengths) -> None:
        self._lengths = lengths

    def end(self, step: int) -> int:
        """Returns the end of the epoch that the step with index `step` belongs to."""
        return self._lengths.end(step)

    def ends_at(self, step: int) -> bool:
        """Whether an epoch ends after `step` steps, so that the next step opens one."""
        return self._lengths.first(step) == step
