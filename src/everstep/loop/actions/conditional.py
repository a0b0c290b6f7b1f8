"""Actions that run under a condition, such as a new best metric."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from everstep import storage
from everstep.loop.action_hook import Action
from everstep.loop.actions.metrics import best_at, is_better, value_of
from everstep.loop.callback_state import CallbackState, owners

Condition = Callable[[Mapping[str, Any]], Any]
"""Called with the logs; what it returns counts as true or false."""


class ConditionalAction:
    """Runs actions when a condition holds.

        best = NewBestMetric("accuracy")
        action = ConditionalAction(best, ExportSavedModel(model, ExportFileManager("runs/demo/served/model")))

    The state of the condition and the actions is saved and restored with the run.

    Args:
      condition: Called with the logs each time.
      action: One action, or several, which run in their order when the condition holds.
    """

    def __init__(self, condition: Condition, action: Action | Sequence[Action]) -> None:
        self.condition = condition
        self.actions: list[Action] = [action] if callable(action) else list(action)
        self._state = CallbackState(owners([condition, *self.actions]), "actions")

    def __call__(self, output: Mapping[str, Any]) -> None:
        """Runs the actions if the condition holds."""
        if self.condition(output):
            for action in self.actions:
                action(output)

    def set_controller(self, controller: Any) -> None:
        """Passes the controller to the condition and the actions that have `set_controller`."""
        for part in (self.condition, *self.actions):
            if hasattr(part, "set_controller"):
                part.set_controller(controller)

    def get_state(self) -> dict[str, Any]:
        """Returns the state of the condition and the actions."""
        arrays, meta = self._state.state()
        return {"arrays": arrays, "meta": meta}

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Restores what `get_state` returned."""
        self._state.restore(state["arrays"], state["meta"])


class NewBestMetric:
    """A condition that is true if a metric is better than ever before; for `ConditionalAction`.

    A value that is not finite is never better, and of two equal values the older one stays the best. In a run the best
    value is part of the state: one that a killed attempt found and did not save is found again.

    Args:
      metric: The name of a metric, `a|b` for a nested one, or a function of the logs.
      higher_is_better: Whether higher values are better.
      filename: A JSON file with the best value, `{"best": 0.7, "step": 600}`, for programs without checkpoints; None
        for no file. The step is null without a controller.
      write_metric: Whether to write that file; False only reads it at the beginning.
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
        self._sure = not write_metric  # whether the best value is final: of an earlier step of this run, or a fixed one
        self._controller: Any = None

    @property
    def best_value(self) -> float | None:
        """The best so far; None if there is none."""
        return self._stored.read()["best"]

    def set_controller(self, controller: Any) -> None:
        """Called by `run_experiment` with the loop."""
        self._controller = controller

    def metric_value(self, output: Mapping[str, Any]) -> float:
        """Returns the metric in the logs.

        Raises:
          UsageError: The logs do not have it; lists their metrics.
        """
        if callable(self.metric):
            return float(self.metric(output))
        return value_of(output, self.metric, "NewBestMetric")

    def test(self, output: Mapping[str, Any]) -> bool:
        """Whether the logs are better than the best so far; changes nothing."""
        best = None if self._is_from_the_future() else self.best_value
        return is_better(self.metric_value(output), best, self.higher_is_better)

    def commit(self, output: Mapping[str, Any]) -> bool:
        """Whether the logs are better than the best so far; if so, they become the best."""
        better = self.test(output)
        if better:
            self._stored.write({"best": self.metric_value(output), "step": self._step()})
        elif self._is_from_the_future():
            self._stored.write({"best": None, "step": None})
        self._sure = True
        return better

    def __call__(self, output: Mapping[str, Any]) -> bool:
        """Calls `commit`."""
        return self.commit(output)

    def get_state(self) -> dict[str, Any]:
        """Returns the best value and its step."""
        return dict(self._stored.read())

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Restores what `get_state` returned; ignores what a killed attempt wrote to the file at later steps."""
        stored = self._stored.read()
        best = best_at(self._step(), state["best"], stored["best"], stored["step"], self.higher_is_better)
        self._stored.write({"best": best, "step": state["step"]} if best == state["best"] else stored)
        self._sure = True

    def _step(self) -> int | None:
        return None if self._controller is None else int(self._controller.step)

    def _is_from_the_future(self) -> bool:
        """Whether a killed attempt wrote the file at a step that this one has not reached yet."""
        step, found_at = self._step(), self._stored.read()["step"]
        return not self._sure and step is not None and found_at is not None and found_at >= step


class JSONPersistedValue:
    """A value in a JSON file, which outlives the process.

        steps = JSONPersistedValue(0, "runs/demo/steps.json")
        steps.write(steps.read() + 1)

    Args:
      initial_value: The value if there is no file.
      filename: The file; None keeps the value in memory.
      write_value: Whether to write the file; False only reads it.
    """

    def __init__(self, initial_value: Any, filename: storage.PathLike | None, write_value: bool = True) -> None:
        self._path = None if filename is None else Path(filename)
        self._writes = write_value and self._path is not None
        self._value = initial_value
        if self._path is not None and self._path.exists():
            self._value = storage.read_json(self._path)
        elif self._writes:
            self.write(initial_value)

    def read(self) -> Any:
        """Returns the value."""
        return self._value

    def write(self, value: Any) -> None:
        """Sets the value; the file contains the old or the new value at any time."""
        self._value = value
        if self._path is not None and self._writes:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            storage.write_json(self._path, value)
