"""`everstep runs rm`: removes runs."""

import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from everstep.checkpoint.remote import is_url
from everstep.cli import completion
from everstep.cli.output import aligned
from everstep.cli.runs_cells import main_metrics, progress
from everstep.errors import UsageError
from everstep.run import Overview, listable, named_run, newest_job, removal

Directories = Annotated[
    list[str], typer.Argument(metavar="DIR", help="Run directories.", autocompletion=completion.runs)
]
Yes = Annotated[bool, typer.Option("--yes", help="Do not prompt; needed without a terminal.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Only show what would be removed.")]
Force = Annotated[bool, typer.Option("--force", help="Remove a run although another one began with its weights.")]


def remove(directories: Directories, yes: Yes = False, dry_run: DryRun = False, force: Force = False) -> None:
    """Remove runs, after showing what is removed.

    Directories that are no runs, runs that train or wait in a queue, and runs whose weights another one beside them
    began with are refused. Only what the run has written is removed: your own files stay, and the directory with them.
    Links are removed, never followed.
    """
    # A directory that exists is the one that is meant, whatever it contains: a removal must not surprise.
    places = [name if os.path.lexists(name) else named_run(name) for name in directories]
    distinct = {Path(name).absolute(): name for name in places}
    found = [_removable(name) for name in distinct.values()]
    if not force:
        _refuse_needed([run.directory for run in found])
    header = ("DIRECTORY", "STATUS", "PROGRESS", "FILES", "SIZE", "METRICS")
    print(aligned([header, *map(_removal_row, found)]))
    if dry_run or not _confirmed(yes, len(found)):
        print("nothing is removed")
        return
    tracked = any((run.directory / "spool").is_dir() for run in found)
    for run in found:
        removal.remove(run.directory)
        print(f"removed {run.directory}{_left(run.directory)}")
    if tracked:
        print("what trackers such as MLflow have of it stays there")


def _removable(name: str) -> Overview:
    """Returns a run that may be removed."""
    if is_url(name):
        raise UsageError("is at a URL", key="DIR", received=name, remedy="remove it with the store's own tools")
    path = Path(name)
    run = Overview(path, listable(removal.check(path)), newest_job(path))
    if run.submission is not None and run.submission.state in ("queued", "active"):
        raise UsageError(
            f"is {run.state}", key="DIR", received=name, remedy=f"end it first: {run.submission.stop_command}"
        )
    return run


def _refuse_needed(directories: Sequence[Path]) -> None:
    removed = {directory.resolve() for directory in directories}
    for directory in directories:
        if users := [user for user in removal.users_of(directory) if user.resolve() not in removed]:
            raise UsageError(
                f"{str(users[0])!r} began with its weights, and cannot be reproduced without it",
                key="DIR",
                received=str(directory),
                remedy="remove both, or add --force",
            )


def _removal_row(run: Overview) -> list[str]:
    files, size = removal.contents(run.directory)
    metrics = main_metrics(run)
    return [str(run.directory), run.state, progress(run), str(files), _size(size), metrics]


def _left(directory: Path) -> str:
    """Returns what is left of a directory whose run is removed: files of the user."""
    names = sorted(entry.name for entry in directory.iterdir()) if directory.exists() else []
    shown = [*names[:5], *([f"and {len(names) - 5} more"] if len(names) > 5 else [])]
    return f" (your own files in it stay: {', '.join(shown)})" if names else ""


def _size(count: float) -> str:
    for unit in ("B", "KiB", "MiB", "GiB"):
        if count < 1024:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1024
    return f"{count:.1f} TiB"


def _confirmed(yes: bool, count: int) -> bool:
    if yes:
        return True
    if not sys.stdin.isatty():
        raise UsageError(
            "there is no terminal for a prompt", key="--yes", remedy="add it to remove what is listed, or use --dry-run"
        )
    what = "this run" if count == 1 else f"these {count} runs"
    try:
        return typer.confirm(f"Remove {what} for good?", default=False, err=True)
    except typer.Abort:  # the terminal was closed
        return False
