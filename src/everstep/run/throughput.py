"""What a rate of steps comes to: samples a second, the share of the device's peak, the share of time without data."""

from collections.abc import Mapping
from typing import Any, NamedTuple

from everstep.engine import flops
from everstep.loop.lazy_logs import LazyLogs
from everstep.run import cost
from everstep.tracking.tracker import Kind, Tracker
from everstep.types import Logs


class _Mark(NamedTuple):
    """How far training was at some time."""

    step: int
    samples: int
    waited: float


class Throughput(Tracker):
    """Adds figures to the logs of training windows, on their way to another tracker.

    samples_per_second: Of the batches as they were, the smaller one at an epoch's end included.
    data_wait: The share of the time that was spent waiting for the next batch, 0 to 1.
    mfu: Model FLOPs utilisation: the operations of the steps over what the devices could have done at their peak,
      where both are known.

    They are computed when somebody looks at the logs, off the training thread. Only the operations of a step are
    counted on it, once, after the first window, and only on devices whose peak is known.

    Args:
      tracker: Where logs go.
      trainer: What trains.
    """

    def __init__(self, tracker: Tracker, trainer: Any) -> None:
        self._tracker, self._trainer = tracker, trainer
        self._last = _Mark(0, 0, 0.0)
        self._share: tuple[Any, float | None] = (None, None)  # of the peak that a step a second is, and whose steps

    def start(self, step: int) -> None:
        """Begins to count."""
        self._last = _Mark(step, *self._trainer.consumed)
        self._tracker.start(step)

    def log(self, step: int, logs: Mapping[str, float], kind: Kind) -> None:
        """Hands the logs on; those of training with more in them."""
        self._tracker.log(step, self._with_figures(step, logs) if kind == "train" else logs, kind)

    def flush(self) -> None:
        """Flushes the other tracker."""
        self._tracker.flush()

    def close(self) -> None:
        """Closes the other tracker."""
        self._tracker.close()

    def _with_figures(self, step: int, logs: Mapping[str, float]) -> Mapping[str, float]:
        before, self._last = self._last, _Mark(step, *self._trainer.consumed)
        steps, waited = step - before.step, _gain(before.waited, self._last.waited)
        samples, share = self._samples(steps, before), self._share_of_peak()

        def fetch() -> Logs:
            rate = logs.get("steps_per_second")
            if not rate or steps <= 0:
                return dict(logs)
            found = {"samples_per_second": samples and rate * samples, "mfu": share and rate * share}
            known = {name: value for name, value in found.items() if value is not None}
            return {**logs, **known, "data_wait": min(1.0, waited * rate / steps)}

        return LazyLogs(fetch)

    def _samples(self, steps: int, before: _Mark) -> float | None:
        """Returns the samples of a step, in the mean of the last ones."""
        if hasattr(self._trainer.task, "samples_per_step"):
            return cost.samples_per_step(self._trainer)
        return _gain(before.samples, self._last.samples) / steps if steps > 0 else None

    def _share_of_peak(self) -> float | None:
        engine = self._trainer.engine
        if self._share[0] is not engine:  # another one for each stage
            most = cost.peak(self._trainer)
            operations = flops.of_train_step(engine, self._trainer.train_example) if most else None
            self._share = engine, operations / most if operations and most else None
        return self._share[1]


def _gain(before: float, now: float) -> float:
    """Returns how much a count has grown; where it began anew meanwhile, the count."""
    return now - before if now >= before else now
