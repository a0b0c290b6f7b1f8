"""The arrays and the JSON document of one checkpoint, written and read by Orbax."""

import json
import threading
from pathlib import Path
from typing import Any

import numpy as np

from everstep.checkpoint.quiet import quiet
from everstep.types import State

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
    """Returns the meta that `write` was given, alone."""
    with quiet(), ocp.Checkpointer(_handler()) as orbax:
        return orbax.restore(path, args=ocp.args.Composite(meta=ocp.args.JsonRestore())).meta["meta"]


def read_empty(path: Path) -> State:
    """Returns the arrays that have no elements, alone: of those only the shapes are stored."""
    with quiet(), ocp.Checkpointer(_handler()) as orbax:
        document = orbax.restore(path, args=ocp.args.Composite(meta=ocp.args.JsonRestore())).meta
    return {key: _create(**spec) for key, spec in document["empty"].items()}


def _handler() -> "ocp.CompositeCheckpointHandler":
    # Nobody changes the arrays before they are written, so that Orbax need not copy them, which would take longer than
    # to write them. Weights hardly shrink; without compression a save takes about half the time.
    numpy = ocp.type_handlers.NumpyHandler(deepcopy_host_arrays=False)
    registry = ocp.type_handlers.create_type_handler_registry((np.ndarray, numpy))
    arrays = ocp.PyTreeCheckpointHandler(use_compression=False, type_handler_registry=registry)
    return ocp.CompositeCheckpointHandler(state=arrays, meta=ocp.JsonCheckpointHandler())


def _arguments(state: State, meta: dict[str, Any]) -> "ocp.args.Composite":
    """Returns what orbax is to save, in a form that it takes.

    It refuses arrays without elements, of which there is nothing to store but what they are, and a tree that
    is empty at the top, hence the one level above the keys.
    """
    arrays = {key: np.asarray(array) for key, array in state.items()}
    empty = {key: _describe(array) for key, array in arrays.items() if array.size == 0}
    tree = {"arrays": {key: array for key, array in arrays.items() if key not in empty}}
    document = {"meta": meta, "empty": empty}
    json.dumps(document)  # what cannot be written is better found before anything is
    return ocp.args.Composite(state=ocp.args.PyTreeSave(tree), meta=ocp.args.JsonSave(document))


def _describe(array: np.ndarray) -> dict[str, Any]:
    return {"shape": list(array.shape), "dtype": array.dtype.name}


def _create(shape: list[int], dtype: str) -> np.ndarray:
    return np.empty(shape, np.dtype(dtype))
