"""Removing a run: only what is a run, that nobody trains, and in one move for whoever looks on.

The directory first gets a hidden name beside the old one, then its files go. A process that is killed in between leaves
a hidden rest that no listing shows, which the next removal in the same place clears away.
"""

import contextlib
import os
import shutil
import uuid
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from everstep.errors import TrainingError, UsageError
from everstep.run.layouts import loop_directories, loop_directory, project_layout
from everstep.run.lock import RunLock, is_held
from everstep.run.record import Record, find_runs, read

_REST = ".everstep-removed-"
_PROJECT = ("pyproject.toml", "setup.py", ".git")


def check(directory: Path) -> Record:
    """Returns the record of a run that may be removed.

    Raises:
      UsageError: It is no run, holds more than one, or is being trained; says what to do.
    """
    name = str(directory)
    if directory.is_symlink():
        raise UsageError(f"{name!r} is a link to {str(directory.resolve())!r}: name that, or remove the link with rm")
    if not directory.is_dir():
        raise UsageError(f"there is no directory {name!r}")
    _refuse_wandering(directory)
    own = loop_directory(directory) if project_layout(directory) else directory
    if not (own / "run.json").is_file():
        raise _no_run(directory)
    record = read(own)
    if others := _runs_in(directory):
        raise UsageError(f"{name!r} holds other runs, such as {str(others[0])!r}: name those you mean")
    for place in loop_directories(directory):
        if is_held(place):
            raise UsageError(
                f"{name!r} is being trained: end that first; where its process is surely gone, on another machine say, "
                f"remove {str(place / '.lock.json')!r}"
            )
    return record


def _refuse_wandering(directory: Path) -> None:
    """Refuses places in which somebody lives, whatever lies in them, and parts of a run."""
    path, here, home = directory.resolve(), Path.cwd(), Path.home()
    for inside, what in ((here, "the working directory"), (home, "your home directory")):
        if inside.resolve().is_relative_to(path):
            raise UsageError(f"{str(directory)!r} is or holds {what}: name a run directory")
    if marks := [mark for mark in _PROJECT if (directory / mark).exists()]:
        raise UsageError(f"{str(directory)!r} is a project, there is {marks[0]} in it: name a run directory")
    around = project_layout(directory.parent)
    if around is not None and directory.name == around.training:
        raise UsageError(f"{str(directory)!r} is a part of the run {str(directory.parent)!r}: name that")


def _no_run(directory: Path) -> UsageError:
    runs = sorted(path.parent for depth in ("*", "*/*") for path in directory.glob(f"{depth}/run.json"))
    if runs:
        return UsageError(f"{str(directory)!r} is no run, but holds some, such as {str(runs[0])!r}: name the runs")
    return UsageError(f"{str(directory)!r} is not a run directory: there is no run.json in it")


def _runs_in(directory: Path) -> list[Path]:
    """Returns the runs in folders of a run; its own loop's folder is a part of it."""
    folders = [entry for entry in directory.iterdir() if entry.is_dir() and not entry.is_symlink()]
    own = {*loop_directories(directory), directory / "submissions"}
    inside = [folder for folder in folders if folder not in own]
    return [path for folder in inside for path, _ in find_runs(folder)]


def users_of(directory: Path) -> list[Path]:
    """Returns the runs beside this one that began with its weights, as far as their records tell."""
    path = directory.resolve()
    beside = [entry for entry in sorted(directory.parent.iterdir()) if entry.resolve() != path]
    return [other for other in beside if any(_leads_to(origin, path) for origin in _origins(other))]


def _origins(directory: Path) -> Iterator[str]:
    with contextlib.suppress(UsageError, OSError):  # no run, or one that tells nothing any more
        found = read(directory)["initial_weights"]
        for report in found if isinstance(found, list) else ():
            if isinstance(report, Mapping) and isinstance(report.get("path"), str):
                yield report["path"]


def _leads_to(origin: str, path: Path) -> bool:
    with contextlib.suppress(OSError, ValueError):  # a text that is no path on this machine
        return Path(origin).resolve().is_relative_to(path)
    return False


def contents(directory: Path) -> tuple[int, int]:
    """Returns how many files a directory has, and how many bytes they are; what links lead to does not count."""
    sizes = [os.lstat(Path(folder, name)).st_size for folder, _, names in os.walk(directory) for name in names]
    return len(sizes), sum(sizes)


def remove(directory: Path) -> None:
    """Removes a run that was checked; of a project's, what the run has written, and nothing else.

    Raises:
      UsageError: Somebody has begun to train it meanwhile, or it cannot be moved; nothing is removed.
      TrainingError: Some of its files cannot be removed.
    """
    with contextlib.ExitStack() as held:
        for place in loop_directories(directory):
            if place.is_dir():
                held.enter_context(RunLock(place))
        clear_rests(directory.parent)
        if layout := project_layout(directory):
            _remove_parts(directory, layout.parts)
        else:
            _erase(_aside(directory))


def _remove_parts(directory: Path, names: Sequence[str]) -> None:
    """Takes away what says that there is a run first: a kill in the middle leaves none that looks whole."""
    for name in names:
        path = directory / name
        if path.is_symlink() or path.is_file():
            path.unlink(missing_ok=True)
        elif path.is_dir():
            _erase(_aside(path))
    with contextlib.suppress(OSError):  # there is something of the user's in it
        directory.rmdir()


def clear_rests(folder: Path) -> None:
    """Removes what a removal that was killed has left in a folder."""
    for rest in folder.glob(f"{_REST}*"):
        shutil.rmtree(rest, ignore_errors=True)


def _aside(path: Path) -> Path:
    hidden = path.with_name(f"{_REST}{uuid.uuid4().hex[:12]}-{path.name}"[:200])
    try:
        path.rename(hidden)
    except OSError as error:
        raise UsageError(f"{str(path)!r} cannot be removed: {error.strerror}") from error
    return hidden


def _erase(path: Path) -> None:
    """Removes a directory; links in it are removed, never followed."""
    shutil.rmtree(path, ignore_errors=True)
    if path.exists():
        raise TrainingError(f"the run is gone, but some of its files cannot be removed: see to {str(path)!r}")
