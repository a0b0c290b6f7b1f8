"""Where the local copies live: `$EVERSTEP_CACHE_DIR`, by default `~/.cache/everstep`.

runs/<digest of the URL>/        the working copy of a run
runs/<digest>.copy.json          which copy it is
runs/<digest>.staging/           what is on its way up or down
runs/<digest>.aside/             a copy that did not fit the store any more
views/<digest>/                  what others look at
data/<digest>/<version>/<name>   a data file
"""

import contextlib
import hashlib
import logging
import os
import uuid
from pathlib import Path

from everstep import storage
from everstep.errors import UsageError

logger = logging.getLogger(__name__)

VARIABLE = "EVERSTEP_CACHE_DIR"
"""The environment variable."""


def root() -> Path:
    """Returns the folder of all local copies."""
    named = os.environ.get(VARIABLE)
    return Path(named).absolute() if named else Path.home() / ".cache" / "everstep"


def key(url: str) -> str:
    """Returns the name that a URL has in the cache."""
    return hashlib.sha256(url.encode()).hexdigest()[:16]


class Copy:
    """The local working copy of a run.

    Args:
      url: Where the run lives.

    Attributes:
      directory: The run directory on this machine; it may not exist.
      staging: A folder beside it, on the same file system; emptied at the start.
    """

    def __init__(self, url: str) -> None:
        folder = root() / "runs"
        storage.prepare_directory(folder)
        self.url, self.directory = url, folder / key(url)
        self.staging = folder / f"{key(url)}.staging"
        self._state = folder / f"{key(url)}.copy.json"
        storage.remove_directory(self.staging)
        self.staging.mkdir()

    @property
    def id(self) -> str:
        """Which copy this is: the same as long as it is used, another on each machine."""
        with contextlib.suppress(UsageError, KeyError, TypeError):
            return str(storage.read_json(self._state)["copy"])
        return self._renew()

    def _renew(self) -> str:
        new = uuid.uuid4().hex
        storage.write_json(self._state, {"copy": new, "url": self.url})
        return new

    def close(self) -> None:
        """Removes what was on its way."""
        storage.remove_directory(self.staging)

    def set_aside(self, reason: str) -> None:
        """Moves the run directory out of the way, in the place of one moved before; the next has another id."""
        aside = self.directory.with_name(f"{self.directory.name}.aside")
        storage.remove_directory(aside)
        self.directory.rename(aside)
        self._renew()
        logger.warning("%s; the local copy is set aside as %s", reason, aside)
