"""Samples in `.npz` files, on this machine or in a store. Imports no Keras."""

from pathlib import Path

import numpy as np

from everstep.checkpoint.remote import is_url, local_files, refuse_lost_slash
from everstep.data.formats import BadFile, NumpyFile
from everstep.errors import UsageError


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
        raise UsageError(f"no such file: {str(path)!r}", key=where)
    if len(found) > 1:
        raise UsageError(f"matches {len(found)} files", key=where, received=str(path), remedy="name one")
    return Path(next(iter(found.values())))


def read_samples(path: str | Path, where: str) -> tuple[np.ndarray, np.ndarray]:
    """Returns inputs and labels of a file that `np.savez(path, x=…, y=…)` wrote.

    Args:
      path: The file, or its URL in a store.
      where: What named it, for messages: `--data`.

    Raises:
      UsageError: There is no such file, it is no such archive, or has not both arrays.
    """
    file = local_file(path, where)
    if not file.is_file():
        raise UsageError(f"no such file: {str(path)!r}", key=where)
    try:
        with NumpyFile(file) as arrays:
            missing = [name for name in ("x", "y") if name not in arrays.names]
            if missing:
                raise UsageError(
                    f"{str(path)!r} has {sorted(arrays.names)}, but no {missing[0]!r}",
                    key=where,
                    remedy="np.savez(…, x=…, y=…)",
                )
            return arrays.read("x"), arrays.read("y")
    except BadFile as error:
        raise UsageError(
            f"{str(path)!r} cannot be read as .npz ({error})", key=where, remedy="write it with np.savez"
        ) from error
