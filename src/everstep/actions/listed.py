"""The actions that one list of a configuration names."""

import logging
from collections.abc import Mapping, Sequence
from typing import Any

from everstep.loop.callback_state import CallbackState, remembering
from everstep.types import State

logger = logging.getLogger(__name__)

_NOTHING: Mapping[str, Any] = {"names": [], "actions": {}}


class ListedActions:
    """What the actions of a list remember, over all attempts of a run.

    The list cannot change when a run goes on unless the user says so; whoever gets here with another one has. Then
    those that are still listed go on, and the others start anew.

    Args:
      key: Where they are listed, such as `trainer.eval_actions`.
      entries: What is listed there.
      actions: What was made of it.
      place: Where their arrays are in a checkpoint.
    """

    def __init__(self, key: str, entries: Sequence[Any], actions: Sequence[Any], place: str) -> None:
        self._key = key
        # The names alone: arguments may hold secrets.
        self._names = [entry if isinstance(entry, str) else str(entry["_target_"]) for entry in entries]
        self._memory = CallbackState(remembering(actions), f"{place}/{key}")

    def get(self) -> tuple[State, dict[str, Any]]:
        """Returns arrays, and what else is to be remembered; nothing where nothing is listed."""
        arrays, actions = self._memory.get()
        return arrays, {"names": self._names, "actions": actions} if self._names else {}

    def prepare(self, meta: Mapping[str, Any]) -> None:
        """Checks that actions of the same names are the same.

        Raises:
          UsageError: They are others; says which.
        """
        saved = meta or _NOTHING
        if saved["names"] == self._names:
            self._memory.prepare(saved["actions"])

    def set(self, arrays: State, meta: Mapping[str, Any]) -> None:
        """Goes on from what `get` returned, as far as it is still listed."""
        saved = meta or _NOTHING
        if saved["names"] == self._names:
            self._memory.set(arrays, saved["actions"])
        elif anew := self._memory.set_known(arrays, saved["actions"]):
            logger.warning("%s has changed: %s starts anew", self._key, ", ".join(anew))
