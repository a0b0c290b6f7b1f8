"""Actions as a hook: plain functions that are called with the logs of a window or an evaluation."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from everstep.loop.callback_state import CallbackState, owners
from everstep.loop.hooks import Hook
from everstep.types import State

Action = Callable[[Mapping[str, Any]], None]
"""Called with the logs of a window or an evaluation; may read the Keras objects and change them."""


class Actions(Hook):
    """Calls actions in their order. Pass it as the first of the hooks that act, so that the others see what it changes.

    Args:
      train: Called after each window, before anything is saved.
      evaluation: Called after each evaluation.

    Attributes:
      train: The same, as a list.
      evaluation: The same.
    """

    name = "actions"

    def __init__(self, train: Iterable[Action] = (), evaluation: Iterable[Action] = ()) -> None:
        self.train, self.evaluation = list(train), list(evaluation)
        self._state = CallbackState(owners([*self.train, *self.evaluation]), self.name)

    @property
    def acts(self) -> bool:
        """Whether anything is called at the end of a window."""
        return bool(self.train)

    def setup(self, controller: Any) -> None:
        """Passes the controller to all actions that have `set_controller`."""
        super().setup(controller)
        for action in (*self.train, *self.evaluation):
            if hasattr(action, "set_controller"):
                action.set_controller(controller)

    def on_window_end(self, step: int, logs: Mapping[str, Any]) -> None:
        """Calls the actions after a window."""
        self._call(self.train, logs)

    def on_evaluation_end(self, step: int, logs: dict[str, Any]) -> None:
        """Calls the actions after an evaluation."""
        self._call(self.evaluation, logs)

    def _call(self, actions: Sequence[Action], logs: Mapping[str, Any]) -> None:
        if not actions:
            return
        with self.controller.synced():
            for action in actions:
                action(logs)

    def state(self) -> tuple[State, dict[str, Any]]:
        """Returns the state of the actions."""
        return self._state.state()

    def check(self, meta: dict[str, Any]) -> None:
        """Checks that the same actions were saved."""
        self._state.check(meta)

    def restore(self, arrays: State, meta: dict[str, Any]) -> None:
        """Restores what `state` returned."""
        self._state.restore(arrays, meta)
