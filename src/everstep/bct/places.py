"""Where a file is on this machine: one in a store is fetched. Imports no Keras."""

from pathlib import Path

from everstep.errors import UsageError
from everstep.remote import is_url, local_files
from everstep.remote.urls import refuse_lost_slash


def local_file(path: str | Path, where: str) -> Path:
    """Returns the path of a file here; for `s3://…` or another URL, of the copy that was fetched.

    Args:
      path: A path, which need not exist, or the URL of one file.
      where: What named it, for messages: `--data`.

    Raises:
      UsageError: There is no such object, several match, or the store cannot be read.
    """
    refuse_lost_slash(path, where)
    if not is_url(path):
        return Path(path)
    found = local_files(str(path), where)
    if not found:
        raise UsageError(f"{where}: no such file: {str(path)!r}")
    if len(found) > 1:
        raise UsageError(f"{where}: {str(path)!r} stands for {len(found)} files: name one")
    return Path(next(iter(found.values())))
