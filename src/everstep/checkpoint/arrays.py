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

from everstep.checkpoint import base, parts
from everstep.log_lines import handlers_kept
from everstep.types import ArrayParts, OwnState, State, StoredState


class _OrbaxLines(logging.Filter):
    """Drops what Orbax logs through absl: its errors are raised as well."""

    def filter(self, record: logging.LogRecord) -> bool:
        return record.levelno >= logging.CRITICAL or f"{os.sep}orbax{os.sep}" not in record.pathname


class _CancelledTasks(logging.Filter):
    """Drops what asyncio logs about Orbax's cancelled tasks: a save that fails raises one error."""

    def filter(self, record: logging.LogRecord) -> bool:
        return not any(word in record.getMessage() for word in (f"{os.sep}orbax{os.sep}", "orbax-checkpoint-tmp"))


_orbax_lines, _cancelled_tasks = _OrbaxLines(), _CancelledTasks()


def _quiet_hook(former: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Wraps `sys.unraisablehook`: when tensorstore notifies asyncio's loop at its end, the loop may be closed."""

    def hook(unraisable: Any) -> None:
        if not (isinstance(unraisable.exc_value, RuntimeError) and "Event loop is closed" in str(unraisable.exc_value)):
            former(unraisable)

    hook.is_quiet = True  # type: ignore[attr-defined]
    return hook


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Inside the block Orbax does not log, and the root logger keeps its handlers.

    Orbax logs a dozen lines per save through absl.
    """
    absl.logging.get_absl_logger().addFilter(_orbax_lines)
    logging.getLogger("asyncio").addFilter(_cancelled_tasks)
    if not getattr(sys.unraisablehook, "is_quiet", False):
        sys.unraisablehook = _quiet_hook(sys.unraisablehook)
    with handlers_kept():
        yield


with quiet():
    import orbax.checkpoint as ocp

    from everstep.checkpoint.orbax_internals import own_save


_one_at_a_time = threading.Lock()  # two saves by Orbax in one process may wait for each other


def write(path: Path, state: OwnState, meta: dict[str, Any]) -> None:
    """Writes state and meta to a new directory `path`; `manifest.write` syncs the files to disk.

    Orbax writes the large arrays. Small ones, and this process's parts of divided ones, are written to `parts/0`: for
    each array, Orbax runs a third of a millisecond of Python, and the training loop waits for Python's lock.

    Of arrays without elements, which Orbax refuses, only shape and type are stored, beside the meta. Orbax also refuses
    a tree that is empty at the top, hence the level `arrays` above the keys.
    """
    divided = {key: array for key, array in state.items() if isinstance(array, ArrayParts)}
    whole = {key: np.asarray(array) for key, array in state.items() if not isinstance(array, ArrayParts)}
    empty = {k: {"shape": list(a.shape), "dtype": a.dtype.name} for k, a in whole.items() if a.size == 0}
    small = {key: parts.in_one(array) for key, array in whole.items() if key not in empty and parts.is_small(array)}
    tree = {"arrays": {key: array for key, array in whole.items() if key not in empty and key not in small}}
    document = {"meta": meta, "empty": empty}
    json.dumps(document)  # raises before anything is written
    arguments = ocp.args.Composite(state=ocp.args.PyTreeSave(tree), meta=ocp.args.JsonSave(document))
    with _one_at_a_time, quiet(), own_save(), _checkpointer() as orbax:
        orbax.save(path, args=arguments)
    parts.write(path / parts.FOLDER / "0", small | divided)


def read(path: Path) -> tuple[State, dict[str, Any]]:
    """Returns state and meta as they were written: the same bits, shapes and dtypes."""
    state, meta = open_state(path)
    return {key: np.asarray(array) for key, array in state.items()}, meta


def open_state(path: Path) -> tuple[StoredState, dict[str, Any]]:
    """Returns the same as `read`, but divided arrays are not read yet; frozen weights of the run are added.

    The arrays never pass through JAX, which would convert int64 to int32.
    """
    place = base.find(path)
    frozen: StoredState = {} if place is None else open_state(place)[0]
    arguments = ocp.args.Composite(state=ocp.args.PyTreeRestore(), meta=ocp.args.JsonRestore())
    with quiet(), _checkpointer() as orbax:
        saved = orbax.restore(path, args=arguments)
    stored = {key: np.asarray(array) for key, array in saved.state["arrays"].items()}
    empty = {key: _create(**spec) for key, spec in saved.meta["empty"].items()}
    in_parts = {key: array.read() if array.is_small else array for key, array in parts.find(path).items()}
    return {**frozen, **stored, **empty, **in_parts}, saved.meta["meta"]


def read_meta(path: Path) -> dict[str, Any]:
    """Returns only the meta of a checkpoint."""
    return _read_document(path)["meta"]


def read_empty(path: Path) -> State:
    """Returns only the arrays that have no elements."""
    place = base.find(path)
    frozen = {} if place is None else read_empty(place)
    return frozen | {key: _create(**spec) for key, spec in _read_document(path)["empty"].items()}


def _read_document(path: Path) -> dict[str, Any]:
    with quiet(), _checkpointer() as orbax:
        return orbax.restore(path, args=ocp.args.Composite(meta=ocp.args.JsonRestore())).meta


def _checkpointer() -> "ocp.Checkpointer":
    """Returns a checkpointer of this process alone: of several that train together, one writes."""
    own = ocp.multihost.process_index()
    alone = ocp.options.MultiprocessingOptions(primary_host=own, active_processes={own})
    return ocp.Checkpointer(_handler(alone), multiprocessing_options=alone)


def _handler(alone: "ocp.options.MultiprocessingOptions") -> "ocp.CompositeCheckpointHandler":
    # The arrays do not change before they are written, so Orbax need not copy them: that would take longer than
    # writing. Weights hardly compress; without compression a save takes about half the time.
    numpy = ocp.type_handlers.NumpyHandler(deepcopy_host_arrays=False)
    registry = ocp.type_handlers.create_type_handler_registry((np.ndarray, numpy))
    arrays = ocp.PyTreeCheckpointHandler(
        use_compression=False, type_handler_registry=registry, multiprocessing_options=alone
    )
    meta = ocp.JsonCheckpointHandler(multiprocessing_options=alone)
    options = ocp.CompositeOptions(multiprocessing_options=alone)
    return ocp.CompositeCheckpointHandler(composite_options=options, state=arrays, meta=meta)


def _create(shape: list[int], dtype: str) -> np.ndarray:
    return np.empty(shape, np.dtype(dtype))
