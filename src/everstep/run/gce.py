"""Preemption notices of Google Compute Engine.

`instance/preempted` on the metadata server is FALSE until the machine has about 30 seconds left, then TRUE
(cloud.google.com/compute/docs/instances/create-use-spot). It is asked every second: the waiting form
(`wait_for_change`) would miss a notice that was there before it asked.
"""

import os

from everstep.run.watcher import Watcher


class GceWatcher(Watcher):
    """Watches `instance/preempted`; GCE_METADATA_HOST names another host than the documented one."""

    def __init__(self) -> None:
        super().__init__()
        host = os.environ.get("GCE_METADATA_HOST") or "metadata.google.internal"
        self._url = f"http://{host}/computeMetadata/v1/instance/preempted"

    def poll(self) -> str | None:
        """Asks once; see `Watcher`."""
        status, text = self.ask(self._url, {"Metadata-Flavor": "Google"})
        if status != 200 or text not in ("TRUE", "FALSE"):
            raise ValueError(f"{self._url} answered {status} {text[:40]!r}, expected TRUE or FALSE")
        return "preemption notice: GCE takes this machine back" if text == "TRUE" else None
