"""Runs at a URL, listed by their records."""

import dataclasses
from typing import Any

from everstep.checkpoint.remote import checked, is_renewed, local_runs
from everstep.errors import UsageError
from everstep.run import Overview, find_runs, listable


@dataclasses.dataclass(frozen=True)
class RemoteRun(Overview):
    """A run in a store.

    Attributes:
      url: Where it is; `directory` is what was fetched of it.
    """

    url: str = ""

    @property
    def _is_at_work(self) -> bool:
        return is_renewed(self.directory)

    def as_dict(self) -> dict[str, Any]:
        """Returns the run for programs, with its URL as its directory."""
        return {**super().as_dict(), "directory": self.url}


def remote_runs(url: str) -> list[RemoteRun]:
    """Returns every run at or below a URL, sorted.

    Raises:
      UsageError: The store cannot be reached.
    """
    found = [(place, find_runs(directory)) for place, directory in local_runs(url)]
    return [RemoteRun(path, listable(record), None, place) for place, runs in found for path, record in runs[:1]]


def remote_run(url: str) -> RemoteRun:
    """Returns the run at a URL.

    Raises:
      UsageError: There is none, or the store cannot be reached.
    """
    place = checked(url, "DIR")
    for run in remote_runs(place):
        if run.url == place:
            return run
    raise UsageError("there is no run at this URL", key="DIR", received=place)
