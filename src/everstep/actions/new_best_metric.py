"""Is this evaluation better than all before it?"""

from collections.abc import Callable, Mapping
from typing import Any

from everstep import storage
from everstep.actions.metrics import is_better, value_of
from everstep.actions.persisted_value import JSONPersistedValue


class NewBestMetric:
    """A condition that is true where a metric is better than ever before; for `ConditionalAction`.

    A value that is not finite is never better, and of two equal ones the older stays the best. In a run the best so
    far is part of its state: what a killed attempt found and did not save is found again.

    Args:
      metric: The name of a metric, `a|b` for one inside another, or a function of the logs.
      higher_is_better: Whether it is to grow.
      filename: A JSON file with the best value so far, for programs that have no checkpoints; None for none.
      write_metric: Whether to write that file; False only begins from it.
    """

    def __init__(
        self,
        metric: str | Callable[[Mapping[str, Any]], float],
        higher_is_better: bool = True,
        filename: storage.PathLike | None = None,
        write_metric: bool = True,
    ) -> None:
        self.metric, self.higher_is_better = metric, higher_is_better
        self._best = JSONPersistedValue(None, filename, write_metric)

    @property
    def best_value(self) -> float | None:
        """The best so far; None if there is none."""
        return self._best.read()

    def metric_value(self, output: Mapping[str, Any]) -> float:
        """Returns the metric in the logs.

        Raises:
          UsageError: It is not there; lists what is.
        """
        if callable(self.metric):
            return float(self.metric(output))
        return value_of(output, self.metric, "NewBestMetric")

    def test(self, output: Mapping[str, Any]) -> bool:
        """Whether the logs are better than the best so far; remembers nothing."""
        return is_better(self.metric_value(output), self.best_value, self.higher_is_better)

    def commit(self, output: Mapping[str, Any]) -> bool:
        """Whether the logs are better than the best so far; if so, they are it from now on."""
        better = self.test(output)
        if better:
            self._best.write(self.metric_value(output))
        return better

    def __call__(self, output: Mapping[str, Any]) -> bool:
        """Is `commit`."""
        return self.commit(output)

    def get_state(self) -> dict[str, Any]:
        """Returns what a run has to remember."""
        return {"best": self.best_value}

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Goes on from what `get_state` returned, whatever the file says: a killed attempt may have been further."""
        self._best.write(state["best"])
