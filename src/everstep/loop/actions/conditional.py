"""Actions that run under a condition."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from everstep.loop.callback_state import CallbackState, owners
from everstep.loop.controller import Action

Condition = Callable[[Mapping[str, Any]], Any]
"""Called with the logs; what it returns counts as true or false."""


class ConditionalAction:
    """Runs actions when a condition holds.

        best = NewBestMetric("accuracy")
        action = ConditionalAction(best, ExportSavedModel(model, ExportFileManager("runs/demo/served/model")))

    What condition and actions remember is saved and restored with the run, as if they were actions themselves.

    Args:
      condition: Called with the logs each time.
      action: What to do when it holds: one action, or several in their order.
    """

    def __init__(self, condition: Condition, action: Action | Sequence[Action]) -> None:
        self.condition = condition
        self.actions: list[Action] = [action] if callable(action) else list(action)
        self._memory = CallbackState(owners([condition, *self.actions]), "actions")

    def __call__(self, output: Mapping[str, Any]) -> None:
        """Acts if the condition holds."""
        if self.condition(output):
            for action in self.actions:
                action(output)

    def set_controller(self, controller: Any) -> None:
        """Gives the controller to the condition and the actions that have `set_controller`."""
        for part in (self.condition, *self.actions):
            if hasattr(part, "set_controller"):
                part.set_controller(controller)

    def get_state(self) -> dict[str, Any]:
        """Returns what condition and actions have to remember."""
        arrays, meta = self._memory.state()
        return {"arrays": arrays, "meta": meta}

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Continues from what `get_state` returned."""
        self._memory.restore(state["arrays"], state["meta"])
