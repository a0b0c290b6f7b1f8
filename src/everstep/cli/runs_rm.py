"""`everstep runs rm`."""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from everstep.cli.output import aligned, number
from everstep.cli.run_words import main_metrics, progress
from everstep.errors import UsageError
from everstep.remote.urls import is_url
from everstep.run import removal
from everstep.submit.overview import Overview, listable
from everstep.submit.submissions import newest

Directories = Annotated[list[str], typer.Argument(metavar="DIR", help="Run directories.")]
Yes = Annotated[bool, typer.Option("--yes", help="Do not ask; needed where nobody can answer.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Only show what would go.")]
Force = Annotated[bool, typer.Option("--force", help="Remove a run although another one began with its weights.")]

_HEADER = ("DIRECTORY", "STATUS", "PROGRESS", "FILES", "SIZE", "METRICS")


def remove(directories: Directories, yes: Yes = False, dry_run: DryRun = False, force: Force = False) -> None:
    """Remove runs, after showing what goes.

    What is no run, is being trained or waits in a queue is refused, and so is a run whose weights another one beside it
    began with. Links are removed, never followed; of a project's run the config file and whatever else is yours stays.
    """
    runs = [_run(name) for name in _distinct(directories)]
    if not force:
        _refuse_needed([run.directory for run in runs])
    print(aligned([_HEADER, *map(_row, runs)]))
    if dry_run or not _agreed(yes, len(runs)):
        print("nothing is removed")
        return
    tracked = any((run.directory / "spool").is_dir() for run in runs)
    for run in runs:
        removal.remove(run.directory)
        left = " (your own files in it stay)" if run.directory.exists() else ""
        print(f"removed {run.directory}{left}")
    if tracked:
        print("what trackers such as MLflow have of it stays there")


def _distinct(names: Sequence[str]) -> list[str]:
    """Returns what was named, each once."""
    return list({Path(name).absolute(): name for name in names if not _refused_url(name)}.values())


def _refused_url(name: str) -> bool:
    if is_url(name):
        raise UsageError(f"DIR: received {name!r}: runs at a URL are removed with the store's own tools")
    return False


def _run(name: str) -> Overview:
    """Returns a run that may be removed."""
    path = Path(name)
    run = Overview(path, listable(removal.check(path)), newest(path))
    if run.submission is not None and run.submission.state in ("queued", "active"):
        raise UsageError(f"{name!r} is {run.state}: end that first: {run.submission.how_to_end}")
    return run


def _refuse_needed(directories: Sequence[Path]) -> None:
    going = {directory.resolve() for directory in directories}
    for directory in directories:
        if users := [user for user in removal.users_of(directory) if user.resolve() not in going]:
            raise UsageError(
                f"{str(directory)!r} is what {str(users[0])!r} began with: without it that run cannot be reproduced; "
                "remove both, or add --force"
            )


def _row(run: Overview) -> list[str]:
    files, size = removal.contents(run.directory)
    metrics = main_metrics((run.record or {}).get("metrics", {}))
    figures = " ".join(f"{name}={number(value)}" for name, value in metrics)
    return [str(run.directory), run.state, progress(run), str(files), _size(size), figures]


def _size(count: float) -> str:
    for unit in ("B", "KiB", "MiB", "GiB"):
        if count < 1024:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1024
    return f"{count:.1f} TiB"


def _agreed(yes: bool, count: int) -> bool:
    if yes:
        return True
    if not sys.stdin.isatty():
        raise UsageError("--yes: nobody can be asked here: add it to remove what is listed, or look with --dry-run")
    what = "this run" if count == 1 else f"these {count} runs"
    try:
        return typer.confirm(f"Remove {what} for good?", default=False, err=True)
    except typer.Abort:  # nobody answers any more
        return False
