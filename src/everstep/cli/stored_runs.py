"""Runs at a URL: fetched for a command that needs their files, or listed by their records."""

import dataclasses
from typing import Any

from everstep.checkpoint.remote.lease import is_renewed
from everstep.checkpoint.remote.run_copies import local_runs, local_view
from everstep.checkpoint.remote.urls import checked, is_url
from everstep.errors import UsageError
from everstep.launch.submit.overview import Overview, listable
from everstep.run.checkpoint_selection import selected_steps
from everstep.run.record import find_runs


def local_run(name: str, checkpoint: str | None = None, checkpoints: bool = True) -> str:
    """Returns where a run is on this machine: the name itself, or the copy of a run at a URL, which is fetched.

    Args:
      name: A path, a URL, or anything else that names a run.
      checkpoint: The value of `--checkpoint`; of a run at a URL, those steps are fetched beside the newest.
      checkpoints: Whether any checkpoints are needed.

    Raises:
      UsageError: There is no run at the URL, or it lacks these steps.
    """
    if not is_url(name):
        return name
    if checkpoint is None:
        return str(local_view(name, checkpoints))
    return str(local_view(name, checkpoints, lambda steps: selected_steps(checkpoint, steps, name)))


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
