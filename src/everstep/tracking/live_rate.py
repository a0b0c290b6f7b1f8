"""How fast a run is right now: the steps of about the last half minute."""

import collections

_SECONDS = 30.0


class LiveRate:
    """Steps a second, from looks at the step at any times.

    Only times at which the step had moved count: before the first one a program is compiled, and a step that takes
    minutes is no slower for being looked at in between.
    """

    def __init__(self) -> None:
        self._looks: collections.deque[tuple[float, int]] = collections.deque()
        self._step: int | None = None
        self._seen = self._rested = 0.0

    def at(self, now: float, step: int, resting: bool = False) -> float | None:
        """Returns the rate, as far as it is known.

        Args:
          now: Seconds.
          step: Steps done.
          resting: Whether nothing is trained at the moment, an evaluation say: that time does not count.
        """
        self._rested += now - self._seen if resting else 0.0
        self._seen = now
        if self._step is None or step < self._step:  # it begins, or went back
            self._looks.clear()
        elif step > self._step:
            self._looks.append((now - self._rested, step))
        self._step = step
        return self._rate()

    def _rate(self) -> float | None:
        looks = self._looks
        while len(looks) > 2 and looks[-1][0] - looks[0][0] > _SECONDS:
            looks.popleft()
        if len(looks) < 2 or looks[-1][0] <= looks[0][0]:
            return None
        return (looks[-1][1] - looks[0][1]) / (looks[-1][0] - looks[0][0])
