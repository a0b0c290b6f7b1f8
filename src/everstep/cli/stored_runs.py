"""Runs at a URL: fetched for a command that needs their files, or listed by their records."""

import dataclasses
from typing import Any

from everstep.checkpoint.remote.lease import is_renewed
from everstep.checkpoint.remote.run_copies import local_runs
from everstep.checkpoint.remote.urls import checked
from everstep.errors import UsageError
from everstep.export.predict.finding import local_run as local_run
from everstep.launch.submit.overview import Overview, listable
from everstep.run.record import find_runs


@dataclasses.dataclass(frozen=True)
class StoredRun(Overview):
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


def stored_runs(url: str) -> list[StoredRun]:
    """Returns every run at or below a URL, sorted.

    Raises:
      UsageError: The store cannot be reached.
    """
    found = [(place, find_runs(directory)) for place, directory in local_runs(url)]
    return [StoredRun(path, listable(record), None, place) for place, runs in found for path, record in runs[:1]]


def stored_run(url: str) -> StoredRun:
    """Returns the run at a URL.

    Raises:
      UsageError: There is none, or the store cannot be reached.
    """
    place = checked(url, "DIR")
    for run in stored_runs(place):
        if run.url == place:
            return run
    raise UsageError("there is no run at this URL", key="DIR", received=place)
