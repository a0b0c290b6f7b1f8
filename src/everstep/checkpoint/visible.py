"""Do all processes of a run see the same directory? A file system that machines share may take a while to show it."""

import time
from collections.abc import Callable
from pathlib import Path

from everstep.errors import UsageError
from everstep.gang import Gang

VISIBLE_SECONDS = 60.0
"""How long a network file system may take to show a process what another one has written."""


def require_visible(path: Path, gang: Gang, is_new: Callable[[], bool] = lambda: True) -> None:
    """Waits until this process sees what the first one has written.

    Args:
      path: The file or directory.
      gang: The processes.
      is_new: Whether a file that exists is the one that was just written.

    Raises:
      UsageError: It does not: the directory is not shared.
    """
    end = time.monotonic() + VISIBLE_SECONDS
    while not (path.exists() and is_new()):
        if time.monotonic() > end:
            me, first = gang.members[gang.rank], gang.members[0]
            raise UsageError(
                f"{first} has written {str(path)!r}, but {me} does not see it",
                key="model_dir",
                remedy="use a directory on a file system that all machines share; for a run in a store, that is "
                "EVERSTEP_CACHE_DIR",
            )
        time.sleep(0.1)
