"""`keras.callbacks.CSVLogger` over several attempts: one header, every epoch once."""

import contextlib
import logging
import os
from collections.abc import Iterator
from typing import Any

from everstep.loop.attribute_state import AttributeState
from everstep.types import State

logger = logging.getLogger(__name__)


class CSVLoggerState(AttributeState):
    """A CSVLogger's state: its columns, and how long its file was.

    Its `on_train_begin` would begin the file anew. In an attempt that goes on it appends instead, and rows that were
    written after the checkpoint are cut off: their epochs are trained again.
    """

    def get(self, arrays: State) -> dict[str, Any]:
        """Returns the columns and the file's length; rows are on disk by then, the callback flushes each."""
        return {**super().get(arrays), "bytes": self._size()}

    def set(self, arrays: State, meta: dict[str, Any]) -> None:
        """Cuts the file, as long as it is open: when training is done nobody writes to it any more."""
        super().set(arrays, meta)
        file = self.owner.csv_file
        if file is None or file.closed:
            return
        size = self._size()
        if size is None or meta["bytes"] is None or size < meta["bytes"]:
            logger.warning("CSVLogger: %r is not what the checkpoint left: rows may be missing", self.owner.filename)
        elif size > meta["bytes"]:
            os.truncate(self.owner.filename, meta["bytes"])
        self.owner.append_header = not self._size()

    @contextlib.contextmanager
    def going_on(self) -> Iterator[None]:
        """Inside the block the file is opened to be appended to."""
        append, self.owner.append = self.owner.append, True
        try:
            yield
        finally:
            self.owner.append = append

    def _size(self) -> int | None:
        """Returns the file's length; None for one that is not there, or not on this machine."""
        try:
            return os.path.getsize(self.owner.filename)
        except OSError:
            return None
