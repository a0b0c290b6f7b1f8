"""Runs that a command names, on this machine: those at a URL are fetched."""

from everstep.remote.urls import is_url
from everstep.remote.working import local_view
from everstep.run.chosen import selected_steps


def local_run(name: str, checkpoint: str | None = None, checkpoints: bool = True) -> str:
    """Returns what a name means on this machine: itself, or where a run at a URL was fetched to.

    Args:
      name: A path, a URL, or anything else that names a run.
      checkpoint: What was asked for with `--checkpoint`; of a run at a URL, those steps are fetched beside the newest.
      checkpoints: Whether any checkpoints are needed.

    Raises:
      UsageError: There is no run at the URL, or not the steps that were asked for.
    """
    if not is_url(name):
        return name
    if checkpoint is None:
        return str(local_view(name, checkpoints))
    return str(local_view(name, checkpoints, lambda steps: selected_steps(checkpoint, steps, name)))
