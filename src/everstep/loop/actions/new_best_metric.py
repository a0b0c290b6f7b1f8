"""Is this evaluation better than all before it?"""

from collections.abc import Callable, Mapping
from typing import Any

from everstep import storage
from everstep.loop.actions.metrics import best_at, is_better, value_of
from everstep.loop.actions.persisted_value import JSONPersistedValue


class NewBestMetric:
    """A condition that is true where a metric is better than ever before; for `ConditionalAction`.

    A value that is not finite is never better, and of two equal ones the older stays the best. In a run the best so
    far is part of its state: what a killed attempt found and did not save is found again.

    Args:
      metric: The name of a metric, `a|b` for one inside another, or a function of the logs.
      higher_is_better: Whether it is to grow.
      filename: A JSON file with the best so far, `{"best": 0.7, "step": 600}`, for programs that have no checkpoints;
        None for none. The step is null where no controller says it.
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
        self._stored = JSONPersistedValue({"best": None, "step": None}, filename, write_metric)
        if not isinstance(self._stored.read(), dict):  # the number alone, as Model Garden writes it
            self._stored.write({"best": self._stored.read(), "step": None})
        self._sure = not write_metric  # whether the best is known to be of this run's own past, or somebody else's
        self._controller: Any = None

    @property
    def best_value(self) -> float | None:
        """The best so far; None if there is none."""
        return self._stored.read()["best"]

    def set_controller(self, controller: Any) -> None:
        """Receives the loop whose evaluations it gets; `run_experiment` calls it."""
        self._controller = controller

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
        best = None if self._looks_ahead() else self.best_value
        return is_better(self.metric_value(output), best, self.higher_is_better)

    def commit(self, output: Mapping[str, Any]) -> bool:
        """Whether the logs are better than the best so far; if so, they are it from now on."""
        better = self.test(output)
        if better:
            self._stored.write({"best": self.metric_value(output), "step": self._step()})
        elif self._looks_ahead():
            self._stored.write({"best": None, "step": None})
        self._sure = True
        return better

    def __call__(self, output: Mapping[str, Any]) -> bool:
        """Is `commit`."""
        return self.commit(output)

    def get_state(self) -> dict[str, Any]:
        """Returns what a run has to remember."""
        return dict(self._stored.read())

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Continues from what `get_state` returned, whatever the file says of later steps, where a killed run was."""
        found = self._stored.read()
        best = best_at(self._step(), state["best"], found["best"], found["step"], self.higher_is_better)
        self._stored.write({"best": best, "step": state["step"]} if best == state["best"] else found)
        self._sure = True

    def _step(self) -> int | None:
        return None if self._controller is None else int(self._controller.step)

    def _looks_ahead(self) -> bool:
        """Whether the file is of an attempt that was killed before anything was saved: this one will get there, too."""
        step, found_at = self._step(), self._stored.read()["step"]
        return not self._sure and step is not None and found_at is not None and found_at >= step
