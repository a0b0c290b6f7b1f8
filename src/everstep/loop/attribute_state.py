"""What a callback remembers, found in its attributes.

A callback says nowhere what of it is state. The rule: plain attributes (numbers, text, lists and dicts of them, arrays,
random generators) that have changed since it was made are; what it was made with, a patience or a file's name, is not
and stays as the new attempt says. Keras's own callbacks follow the same rule, but for the names below.
"""

import json
import logging
import pathlib
import types
from collections.abc import Iterator
from typing import Any

from everstep import redaction
from everstep.loop.plain_values import NotPlainError, decode, encode, fingerprint
from everstep.types import State

# By Keras's class: attributes that change and are no state, because a new attempt finds or opens them anew. The sign
# of `min_delta` is turned along with the setting of `monitor_op`; saved, it would be turned twice.
_NOT_STATE = {
    "Callback": {"params", "_model"},
    "MonitorCallback": {"monitor_op", "min_delta"},
    "CSVLogger": {"append", "append_header", "csv_file", "writer"},
    "OrbaxCheckpoint": {"checkpointer", "_async_futures"},
    "ProgbarLogger": {"epochs", "progbar", "seen", "target", "verbose"},
    "TensorBoard": {
        *("_batch_start_time", "_batch_trace_context", "_epoch_start_time", "_is_tracing", "_log_write_dir"),
        *("_prev_summary_state", "_previous_epoch_iterations", "_profiler_started", "_should_trace"),
        *("_should_write_train_graph", "_summary_module", "_train_accumulated_time", "_train_dir", "_val_dir"),
        "_writers",
    },
}

# They do not change, or are not for a callback to keep.
_NO_MEMORY = (
    *(types.FunctionType, types.BuiltinFunctionType, types.MethodType, types.ModuleType, type),
    *(pathlib.PurePath, logging.Logger),
)


class AttributeState:
    """The state of one callback, as its attributes show it.

    Args:
      owner: The callback; as it is now is how it was made.
      prefix: Where its arrays go, such as `callbacks/0.EarlyStopping`.

    Attributes:
      unsaved: Attributes that may be state and cannot be saved, with their types; known after the first `get`.
    """

    form = "attributes"

    def __init__(self, owner: Any, prefix: str) -> None:
        self.owner, self.prefix = owner, prefix
        self.unsaved: dict[str, str] = {}
        own = [cls.__name__ for cls in type(owner).__mro__ if is_keras(cls)]
        self._not_state = set().union(*(_NOT_STATE.get(name, ()) for name in own))
        self._born = {name: fingerprint(encoded, arrays) for name, encoded, arrays in self._plain()}
        self._changed: set[str] = set()

    def look(self) -> None:
        """Notes what has changed so far: what `on_train_begin` resets is state, also when it is back to what it was."""
        for name, encoded, arrays in self._plain():
            if name not in self._changed and fingerprint(encoded, arrays) != self._born.get(name):
                self._changed.add(name)

    def get(self, arrays: State) -> dict[str, Any]:
        """Returns the attributes that have ever changed, and the names of the others; arrays go to `arrays`."""
        self.look()
        changed, unchanged = {}, []
        for name, encoded, own in self._plain():
            if name in self._changed:
                changed[name] = encoded
                arrays |= own
            else:
                unchanged.append(name)
        return {"attributes": changed, "unchanged": unchanged}

    def set(self, arrays: State, meta: dict[str, Any]) -> None:
        """Sets the attributes; those that had not changed yet, and have since, go back to what they were made as."""
        for name in self._changed.intersection(meta["unchanged"]):
            born, sums = json.loads(self._born[name])
            if not sums:
                setattr(self.owner, name, decode(born, {}))
        for name, encoded in meta["attributes"].items():
            setattr(self.owner, name, decode(encoded, arrays))
            self._changed.add(name)

    def _plain(self) -> Iterator[tuple[str, Any, State]]:
        """Yields the attributes that can be saved: name, encoded value, arrays."""
        for name, value in list(getattr(self.owner, "__dict__", {}).items()):
            arrays: State = {}
            if name in self._not_state:
                continue
            try:
                encoded = encode(value, f"{self.prefix}/{name}", arrays)
            except NotPlainError as error:
                if self._may_be_state(value):
                    self.unsaved[name] = str(error)
                continue
            if redaction.tree({name: encoded}) == {name: encoded}:  # a secret is got anew, never saved
                yield name, encoded, arrays

    def _may_be_state(self, value: Any) -> bool:
        if isinstance(value, _NO_MEMORY) or is_keras(type(self.owner)) or _root(type(value)) == "everstep":
            return False
        return not any(value is part for part in _model_parts(getattr(self.owner, "_model", None)))


def _model_parts(model: Any) -> list[Any]:
    """Returns the model, its optimizer and its layers: their variables are saved with the run."""
    return [] if model is None else [model, model.optimizer, *model._flatten_layers()]


def is_keras(cls: type) -> bool:
    """Whether a class is Keras's own; a user's subclass is not."""
    return _root(cls) == "keras"


def _root(cls: type) -> str:
    return cls.__module__.partition(".")[0]
