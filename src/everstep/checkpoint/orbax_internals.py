"""Modules of Orbax that are not public: named here alone, so that a move inside Orbax is one repair.

Both changes apply to the saves of this package, while a thread is inside `own_save`; all others are as they were.
"""

import contextlib
import threading
import uuid
from collections.abc import Iterator
from typing import Any

import tensorstore
from orbax.checkpoint._src.futures import synchronization
from orbax.checkpoint._src.serialization import tensorstore_utils


class _Save(threading.local):
    operation = ""
    """The id of the save that this thread is in; empty outside of `own_save`."""


_save = _Save()


@contextlib.contextmanager
def own_save() -> Iterator[None]:
    """Inside the block a save by this thread disturbs no other one, and is not synced to disk file by file.

    The parts of a save find each other by the number that a counter of the process has at that moment. With two saves
    at once, such as one by Keras's `OrbaxCheckpoint` in its own thread, they would take the number of the other one:
    write into a directory that is not there yet, or wait for one that nobody creates. Here a save has an id of its own.

    TensorStore syncs each file that it writes, and Orbax merges them into others. `manifest.write` syncs those that are
    left, once.
    """
    _save.operation = f"everstep-{uuid.uuid4().hex}"
    try:
        yield
    finally:
        _save.operation = ""


def _install() -> None:
    generator, context = synchronization.OperationIdGenerator, tensorstore_utils.get_ts_context
    current, following = generator.get_current_operation_id, generator.next_operation_id

    def get_ts_context(*args: Any, **kwargs: Any) -> Any:
        made = context(*args, **kwargs)
        return tensorstore.Context({"file_io_sync": False}, parent=made) if _save.operation else made

    generator.get_current_operation_id = staticmethod(lambda: _save.operation or current())
    generator.next_operation_id = staticmethod(lambda: 0 if _save.operation else following())
    tensorstore_utils.get_ts_context = get_ts_context


_install()
