"""One file out of a zip archive that somebody else wrote."""

import contextlib
import lzma
import stat
import tempfile
import zipfile
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import IO

from everstep.errors import UsageError
from everstep.task.initial.find import KEY

_PIECE = 1 << 20
_BROKEN = (
    *(zipfile.BadZipFile, zipfile.LargeZipFile, zlib.error, lzma.LZMAError, EOFError, OSError),
    *(NotImplementedError, RuntimeError, ValueError, OverflowError, MemoryError),
)


@contextlib.contextmanager
def member(path: Path, name: str, limit: int) -> Iterator[IO[bytes]]:
    """Yields one file of an archive, unpacked into a temporary file without a name; no name in it is ever used.

    Args:
      path: The archive.
      name: The file in it.
      limit: How many bytes it may unpack to; one that is stored as it is may be as large as the archive.

    Raises:
      UsageError: It is no archive, has no such file or would unpack to more, or a name in it leads out of it.
    """
    with contextlib.ExitStack() as stack:
        try:
            archive = stack.enter_context(zipfile.ZipFile(path))
            _refuse_names(archive, path)
            file = stack.enter_context(tempfile.TemporaryFile())
            _copy(archive, archive.getinfo(name), file, max(limit, 0))
        except KeyError:
            raise UsageError(f"{KEY}: {str(path)!r} has no {name}: it is no model that Keras 3 saved") from None
        except UsageError:
            raise
        except _BROKEN as error:
            raise UsageError(f"{KEY}: {str(path)!r} cannot be read: {error}") from error
        yield file


def _refuse_names(archive: zipfile.ZipFile, path: Path) -> None:
    names = [info.filename for info in archive.infolist()]
    for info in archive.infolist():
        name = info.filename
        parts = name.replace("\\", "/").split("/")
        if name.startswith(("/", "\\")) or ".." in parts or ":" in parts[0] or "\\" in name:
            raise UsageError(f"{KEY}: {str(path)!r} is refused: the name {name!r} in it leads out of it")
        if stat.S_ISLNK(info.external_attr >> 16):
            raise UsageError(f"{KEY}: {str(path)!r} is refused: {name!r} in it is a link")
    if len(set(names)) != len(names):
        raise UsageError(f"{KEY}: {str(path)!r} is refused: a name stands in it twice")


def _copy(archive: zipfile.ZipFile, info: zipfile.ZipInfo, file: IO[bytes], limit: int) -> None:
    """Copies, and checks the archive's checksum while at it; what the archive says of sizes is not relied on."""
    stored = info.compress_type == zipfile.ZIP_STORED
    left = info.compress_size if stored else limit
    with archive.open(info) as packed:
        while piece := packed.read(_PIECE):
            left -= len(piece)
            if left < 0:
                raise UsageError(
                    f"{KEY}: {archive.filename!r} is refused: {info.filename} unpacks to more than {limit:,} bytes, "
                    "far more than the model has; Keras itself does not compress weights: save them anew"
                )
            file.write(piece)
    file.seek(0)
