"""The arrays and the JSON document of one checkpoint, written and read by Orbax."""

import contextlib
import json
import logging
import os
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import absl.logging
import numpy as np

from everstep.types import State


class _NotOrbax(logging.Filter):
    """Drops what Orbax logs through absl: errors are raised as well."""

    def filter(self, record: logging.LogRecord) -> bool:
        return record.levelno >= logging.CRITICAL or f"{os.sep}orbax{os.sep}" not in record.pathname


class _NotCancelled(logging.Filter):
    """Drops what asyncio logs about Orbax's cancelled tasks: a save that fails raises one error."""

    def filter(self, record: logging.LogRecord) -> bool:
        return not any(word in record.getMessage() for word in (f"{os.sep}orbax{os.sep}", "orbax-checkpoint-tmp"))


_filter, _late = _NotOrbax(), _NotCancelled()


def _quiet_hook(former: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Wraps `sys.unraisablehook`: tensorstore notifies asyncio's loop at its end, which may be closed by then."""

    def hook(unraisable: Any) -> None:
        if not (isinstance(unraisable.exc_value, RuntimeError) and "Event loop is closed" in str(unraisable.exc_value)):
            former(unraisable)

    hook.is_quiet = True  # type: ignore[attr-defined]
    return hook


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Inside the block Orbax does not log, and the root logger keeps its handlers.

    Orbax logs each save in a dozen lines through absl, and absl, when it logs while the root logger has no handler,
    adds one for good: a later `logging.basicConfig` of the user's would then do nothing.
    """
    absl.logging.get_absl_logger().addFilter(_filter)
    logging.getLogger("asyncio").addFilter(_late)
    if not getattr(sys.unraisablehook, "is_quiet", False):
        sys.unraisablehook = _quiet_hook(sys.unraisablehook)
    root = logging.getLogger()
    stand_in = logging.lastResort or logging.NullHandler()
    with contextlib.ExitStack() as stack:
        if not root.handlers:
            root.addHandler(stand_in)
            stack.callback(root.removeHandler, stand_in)
        yield


with quiet():
    import orbax.checkpoint as ocp


_one_at_a_time = threading.Lock()  # two saves of Orbax's in one process may wait for each other


def write(path: Path, state: State, meta: dict[str, Any]) -> None:
    """Writes a new directory `path`."""
    with _one_at_a_time, quiet(), ocp.Checkpointer(_handler()) as orbax:
        orbax.save(path, args=_arguments(state, meta))


def read(path: Path) -> tuple[State, dict[str, Any]]:
    """Returns what `write` was given: the same bits, shapes and dtypes.

    They never pass through JAX, which would make int32 of int64.
    """
    arguments = ocp.args.Composite(state=ocp.args.PyTreeRestore(), meta=ocp.args.JsonRestore())
    with quiet(), ocp.Checkpointer(_handler()) as orbax:
        saved = orbax.restore(path, args=arguments)
    stored = {key: np.asarray(array) for key, array in saved.state["arrays"].items()}
    empty = {key: _create(**spec) for key, spec in saved.meta["empty"].items()}
    return stored | empty, saved.meta["meta"]


def read_meta(path: Path) -> dict[str, Any]:
    """Returns only the meta that `write` was given."""
    with quiet(), ocp.Checkpointer(_handler()) as orbax:
        return orbax.restore(path, args=ocp.args.Composite(meta=ocp.args.JsonRestore())).meta["meta"]


def read_empty(path: Path) -> State:
    """Returns only the arrays that have no elements: of those only the shapes are stored."""
    with quiet(), ocp.Checkpointer(_handler()) as orbax:
        document = orbax.restore(path, args=ocp.args.Composite(meta=ocp.args.JsonRestore())).meta
    return {key: _create(**spec) for key, spec in document["empty"].items()}


def _handler() -> "ocp.CompositeCheckpointHandler":
    # The arrays do not change before they are written, so Orbax need not copy them, which would take longer than to
    # write them. Weights hardly shrink; without compression a save takes about half the time.
    numpy = ocp.type_handlers.NumpyHandler(deepcopy_host_arrays=False)
    registry = ocp.type_handlers.create_type_handler_registry((np.ndarray, numpy))
    arrays = ocp.PyTreeCheckpointHandler(use_compression=False, type_handler_registry=registry)
    return ocp.CompositeCheckpointHandler(state=arrays, meta=ocp.JsonCheckpointHandler())


def _arguments(state: State, meta: dict[str, Any]) -> "ocp.args.Composite":
    """Returns the arguments of Orbax's `save`.

    Orbax refuses arrays without elements, of which only shape and type are stored, and a tree that is empty at the
    top, hence the one level above the keys.
    """
    arrays = {key: np.asarray(array) for key, array in state.items()}
    empty = {key: _describe(array) for key, array in arrays.items() if array.size == 0}
    tree = {"arrays": {key: array for key, array in arrays.items() if key not in empty}}
    document = {"meta": meta, "empty": empty}
    json.dumps(document)  # finds what cannot be written before anything is
    return ocp.args.Composite(state=ocp.args.PyTreeSave(tree), meta=ocp.args.JsonSave(document))


def _describe(array: np.ndarray) -> dict[str, Any]:
    return {"shape": list(array.shape), "dtype": array.dtype.name}


def _create(shape: list[int], dtype: str) -> np.ndarray:
    return np.empty(shape, np.dtype(dtype))
