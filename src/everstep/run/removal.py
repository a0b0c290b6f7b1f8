"""Removes runs: only directories that are runs, only while no process trains them, and atomically for observers.

The directory is first renamed to a hidden name beside the old one, then its files are removed. A process that is killed
in between leaves a hidden folder that no listing shows; the next removal in the same place removes it.
"""

import contextlib
import os
import shutil
import uuid
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from everstep.errors import TrainingError, UsageError
from everstep.run.layout_registry import loop_directories, loop_directory, project_layout
from everstep.run.lock import RunLock, is_held
from everstep.run.naming import runs_like
from everstep.run.own_files import foreign_files
from everstep.run.record import Record, find_runs, read

_LEFTOVER = ".everstep-removed-"
_PROJECT = ("pyproject.toml", "setup.py", ".git")


def check(directory: Path) -> Record:
    """Returns the record of a run that may be removed.

    Raises:
      UsageError: It is not a run, contains other runs, or is being trained; tells what to do.
    """
    name = str(directory)
    if directory.is_symlink():
        reason, remedy = f"is a link to {str(directory.resolve())!r}", "specify that, or remove the link with rm"
        raise UsageError(reason, key=name, remedy=remedy)
    if not directory.is_dir():
        raise UsageError("there is no such directory", key=name, remedy=runs_like(name))
    _refuse_other_places(directory)
    own = loop_directory(directory) if project_layout(directory) else directory
    if not (own / "run.json").is_file():
        raise _no_run(directory)
    record = read(own)
    if others := _runs_in(directory):
        remedy = "specify the runs to remove"
        raise UsageError(f"contains other runs, such as {str(others[0])!r}", key=name, remedy=remedy)
    for place in loop_directories(directory):
        if is_held(place):
            raise UsageError(
                "is being trained",
                key=name,
                remedy="stop that first; if its process is certainly dead, such as on another machine, remove "
                f"{str(place / '.lock.json')!r}",
            )
    return record


def _refuse_other_places(directory: Path) -> None:
    """Refuses the home and the working directory, projects, and parts of a run, whatever they contain."""
    path, here, home = directory.resolve(), Path.cwd(), Path.home()
    for inside, what in ((here, "the working directory"), (home, "your home directory")):
        if inside.resolve().is_relative_to(path):
            raise UsageError(f"is or contains {what}", key=str(directory), remedy="specify a run directory")
    if marks := [mark for mark in _PROJECT if (directory / mark).exists()]:
        reason = f"is a project: it contains {marks[0]}"
        raise UsageError(reason, key=str(directory), remedy="specify a run directory")
    around = project_layout(directory.parent)
    if around is not None and directory.name == around.training:
        reason = f"is a part of the run {str(directory.parent)!r}"
        raise UsageError(reason, key=str(directory), remedy="specify the whole run")


def _no_run(directory: Path) -> UsageError:
    runs = sorted(path.parent for depth in ("*", "*/*") for path in directory.glob(f"{depth}/run.json"))
    if runs:
        reason = f"is not a run, but contains some, such as {str(runs[0])!r}"
        return UsageError(reason, key=str(directory), remedy="specify the runs to remove")
    return UsageError("is not a run directory: it has no run.json", key=str(directory))


def _runs_in(directory: Path) -> list[Path]:
    """Returns other runs in the folders of a run; the folder of its loop is a part of it."""
    folders = [entry for entry in directory.iterdir() if entry.is_dir() and not entry.is_symlink()]
    own = {*loop_directories(directory), directory / "submissions"}
    inside = [folder for folder in folders if folder not in own]
    return [path for folder in inside for path, _ in find_runs(folder)]


def users_of(directory: Path) -> list[Path]:
    """Returns the runs beside this one that started from its weights, according to their records."""
    path = directory.resolve()
    beside = [entry for entry in sorted(directory.parent.iterdir()) if entry.resolve() != path]
    return [other for other in beside if any(_leads_to(origin, path) for origin in _origins(other))]


def _origins(directory: Path) -> Iterator[str]:
    with contextlib.suppress(UsageError, OSError):  # not a run, or a damaged one
        found = read(directory)["initial_weights"]
        for report in found if isinstance(found, list) else ():
            if isinstance(report, Mapping) and isinstance(report.get("path"), str):
                yield report["path"]


def _leads_to(origin: str, path: Path) -> bool:
    with contextlib.suppress(OSError, ValueError):  # not a path on this machine
        return Path(origin).resolve().is_relative_to(path)
    return False


def contents(directory: Path) -> tuple[int, int]:
    """Returns the number of a run's files and their total size; links are not followed."""
    kept = {str(directory / name) for name in foreign_files(directory)}
    sizes = []
    for folder, folders, names in os.walk(directory):
        folders[:] = [name for name in folders if os.path.join(folder, name) not in kept]
        paths = (os.path.join(folder, name) for name in names)
        sizes += [os.lstat(path).st_size for path in paths if path not in kept]
    return len(sizes), sum(sizes)


def remove(directory: Path) -> None:
    """Removes a checked run: what the run has written; files of the user stay, and the directory with them.

    Raises:
      UsageError: A process has begun to train it meanwhile, or it cannot be moved; nothing is removed.
      TrainingError: Some of its files cannot be removed.
    """
    with contextlib.ExitStack() as held:
        for place in loop_directories(directory):
            if place.is_dir():
                held.enter_context(RunLock(place))
        remove_leftovers(directory.parent)
        if layout := project_layout(directory):
            _remove_parts(directory, layout.parts)
        elif kept := foreign_files(directory):
            _remove_parts(directory, _other_parts(directory, kept))
        else:
            _erase(_aside(directory))


def _other_parts(directory: Path, kept: Sequence[str]) -> list[str]:
    """Returns everything in a run directory but what is kept, the record first."""
    shared = {name.partition("/")[0] for name in kept}
    names = [entry.name for entry in directory.iterdir() if entry.name not in shared]
    inside = {name.partition("/")[0] for name in kept if "/" in name}
    names += [f"{folder}/{entry.name}" for folder in inside for entry in (directory / folder).iterdir()]
    return sorted({*names} - {*kept}, key=lambda name: (name != "run.json", name))


def _remove_parts(directory: Path, names: Sequence[str]) -> None:
    """Removes the record first: a kill in the middle does not leave a run that looks complete."""
    for name in names:
        path = directory / name
        if path.is_symlink() or path.is_file():
            path.unlink(missing_ok=True)
        elif path.is_dir():
            _erase(_aside(path))
    with contextlib.suppress(OSError):  # it contains files of the user
        directory.rmdir()


def remove_leftovers(folder: Path) -> None:
    """Removes what killed removals have left in a folder."""
    for leftover in folder.glob(f"{_LEFTOVER}*"):
        shutil.rmtree(leftover, ignore_errors=True)


def _aside(path: Path) -> Path:
    hidden = path.with_name(f"{_LEFTOVER}{uuid.uuid4().hex[:12]}-{path.name}"[:200])
    try:
        path.rename(hidden)
    except OSError as error:
        raise UsageError(f"cannot be removed: {error.strerror}", key=str(path)) from error
    return hidden


def _erase(path: Path) -> None:
    """Removes a directory; links in it are removed, never followed."""
    shutil.rmtree(path, ignore_errors=True)
    if path.exists():
        reason = "the run is removed, but some of its files cannot be"
        raise TrainingError(reason, key=str(path), remedy="remove them yourself")
