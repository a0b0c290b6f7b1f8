"""Samples out of an `.npz` file: `x` and `y`."""

import zipfile
from pathlib import Path

import numpy as np

from everstep.bct.places import local_file
from everstep.errors import UsageError


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
        raise UsageError(f"{where}: no such file: {str(path)!r}")
    try:
        with np.load(file, allow_pickle=False) as held:
            missing = [name for name in ("x", "y") if name not in held]
            if missing:
                raise UsageError(
                    f"{where}: {str(path)!r} has {sorted(held)}, but no {missing[0]!r}: np.savez(…, x=…, y=…)"
                )
            return held["x"], held["y"]
    except UsageError:
        raise
    except (OSError, ValueError, EOFError, KeyError, AttributeError, TypeError, zipfile.BadZipFile) as error:
        raise UsageError(f"{where}: {str(path)!r} cannot be read as .npz ({error}): write it with np.savez") from error
