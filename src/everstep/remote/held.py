"""A store that only the holder of its lease writes to."""

from collections.abc import Iterable
from pathlib import Path

from everstep.checkpoint import manifest
from everstep.remote import index
from everstep.remote.checksums import Fingerprint
from everstep.remote.lease import Lease
from everstep.remote.transfer import INCOMING, Store

_MARKERS = (f"/{manifest.NAME}", index.NAME, "run.json", "job_meta.json")


class HeldStore(Store):
    """The store of a run that is trained here: before each object that is written, the lease has to be held.

    What makes other objects count (a manifest, the index, the record) takes its name only after the store itself has
    been asked whose the lease is: a machine that was away, and was replaced, leaves nothing that looks complete.

    Args:
      url: The place.
      lease: Its lease.
    """

    def __init__(self, url: str, lease: Lease) -> None:
        super().__init__(url)
        self._lease = lease

    def put(self, name: str, source: Path, known: Fingerprint | None = None) -> Fingerprint:
        """Uploads a file; see `Store.put`."""
        self._require(name)
        return super().put(name, source, known)

    def copy(self, source: str, target: str) -> None:
        """Copies an object inside the store; see `Store.copy`."""
        self._require(target)
        super().copy(source, target)

    def delete(self, names: Iterable[str]) -> None:
        """Removes objects; see `Store.delete`."""
        for name in names:
            self._require(name)
            super().delete([name])

    def _require(self, name: str) -> None:
        if not name.startswith(f"{INCOMING}/") and name.endswith(_MARKERS):
            self._lease.confirm()
        else:
            self._lease.check()
