"""What must resume together with the variables: callbacks, actions, random generators.

Each part has a name. Its arrays join the checkpoint's state under keys that begin with it, `callbacks/…`; the rest,
plain JSON values, goes into the checkpoint's meta. A checkpoint is read before a run begins, and a part is put back
after everything that might change it: parts are first asked whether they can take what was saved (`prepare`), then
given it (`set`).
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Protocol

from everstep.errors import UsageError
from everstep.types import State


class ExtraState(Protocol):
    """One part of the state; the controller calls it.

    Attributes:
      name: Its place in a checkpoint, such as `callbacks`; no variable's key begins with it.
    """

    name: str

    def get(self) -> tuple[State, Any]:
        """Returns arrays by key, `<name>/…`, and plain JSON values; neither changes when training goes on."""

    def prepare(self, meta: Any) -> None:
        """Looks at what is going to be set; called when a checkpoint is read.

        Raises:
          UsageError: It does not fit.
        """

    def set(self, arrays: State, meta: Any) -> None:
        """Goes on from what `get` returned; called before the first step, and when a run goes back."""


def collect(parts: Iterable[ExtraState]) -> tuple[State, dict[str, Any]]:
    """Returns the arrays of all parts, and their meta by name."""
    arrays: State = {}
    metas: dict[str, Any] = {}
    for part in parts:
        own, metas[part.name] = part.get()
        arrays |= own
    return arrays, metas


def split(state: State, metas: Mapping[str, Any]) -> tuple[State, State]:
    """Parts a checkpoint's arrays into those of the variables, and those of the parts that `metas` names."""
    beginnings = tuple(f"{name}/" for name in metas)
    extra = {key: array for key, array in state.items() if key.startswith(beginnings)}
    return {key: array for key, array in state.items() if key not in extra}, extra


def prepare(parts: Sequence[ExtraState], metas: Mapping[str, Any]) -> None:
    """Shows each part what was saved of it.

    Raises:
      UsageError: Something does not fit, or belongs to a part that is not there.
    """
    names = {part.name for part in parts}
    unknown = [name for name, meta in metas.items() if meta and name not in names]
    if unknown:
        raise UsageError(
            f"the checkpoint holds the state of {', '.join(unknown)}, of which there are none here: go on with the "
            "call that started the run, or start a new one"
        )
    for part in parts:
        if part.name in metas:
            part.prepare(metas[part.name])


def put_back(parts: Iterable[ExtraState], arrays: State, metas: Mapping[str, Any]) -> None:
    """Gives each part what was saved of it; what older checkpoints do not have stays as it is."""
    for part in parts:
        if part.name in metas:
            part.set({key: array for key, array in arrays.items() if key.startswith(f"{part.name}/")}, metas[part.name])
