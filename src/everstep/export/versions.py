"""Numbered versions in a directory, as TensorFlow Serving watches them: `serving/mnist/1731703000`."""

import contextlib
import errno
import time
import uuid
from collections.abc import Iterator
from pathlib import Path

from everstep import storage


class Version:
    """A version that is being written.

    Attributes:
      temporary: The directory to write to.
      path: The final directory; set at the end of the block that writes the version.
    """

    def __init__(self, temporary: Path) -> None:
        self.temporary = self.path = temporary


@contextlib.contextmanager
def new_version(directory: Path) -> Iterator[Version]:
    """Yields a version to write; at the end of the block it is renamed to the current second, or the next free one.

    Renaming itself takes the number, so that two processes cannot take the same one. If the block fails, nothing
    remains.
    """
    new = storage.prepare_directory(directory)
    version = Version(directory / f".everstep-{uuid.uuid4().hex[:12]}-version")
    try:
        yield version
        version.path = _rename_to_number(version.temporary)
    finally:
        storage.remove_directory(version.temporary)
        if new:
            with contextlib.suppress(OSError):  # it contains a version
                directory.rmdir()


def _rename_to_number(temporary: Path) -> Path:
    number = int(time.time())
    while True:
        path = temporary.with_name(str(number))
        try:
            if not path.exists():
                return temporary.rename(path)
        except OSError as error:
            if error.errno not in (errno.EEXIST, errno.ENOTEMPTY):  # else another process was faster
                raise
        number += 1
