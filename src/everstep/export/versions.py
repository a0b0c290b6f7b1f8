"""Directories of versions, as TensorFlow Serving watches them: `serving/mnist/1731703000`."""

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
      temporary: Where to write it.
      path: Where it is; set at the end of the block that writes it.
    """

    def __init__(self, temporary: Path) -> None:
        self.temporary = self.path = temporary


@contextlib.contextmanager
def new_version(directory: Path) -> Iterator[Version]:
    """What the block writes becomes the version of this second, or of the next second that is not taken.

    The number is taken by the renaming itself, so that two processes cannot take the same one. When the block fails
    nothing remains.
    """
    new = storage.prepare_directory(directory)
    version = Version(directory / f".everstep-{uuid.uuid4().hex[:12]}-version")
    try:
        yield version
        version.path = _rename_to_number(version.temporary)
    finally:
        storage.remove_directory(version.temporary)
        if new:
            with contextlib.suppress(OSError):  # there is a version in it
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
