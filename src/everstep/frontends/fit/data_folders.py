"""Refuses a run directory in a folder of training data: its `checkpoints/` and `train/` would be read as classes."""

import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from everstep.checkpoint.remote import is_url
from everstep.data import ParquetSource, class_names, file_paths
from everstep.data.formats import SUFFIXES
from everstep.data.images import ImageSource
from everstep.errors import UsageError

_MOST_ENTRIES = 1000
"""How many entries of a folder are looked at."""


def require_no_data(model_dir: Any, *sources: Any) -> None:
    """Refuses a run directory that holds the data which a call reads, or is in its folder, or has folders of images.

    A directory that has a run already is accepted: what it might spoil is spoilt.

    Args:
      model_dir: The run directory.
      *sources: The data of the call.

    Raises:
      UsageError: The directory is no place for a run.
    """
    if not model_dir or is_url(model_dir) or (Path(model_dir) / "run.json").exists():
        return
    place = Path(model_dir).resolve()
    for source in sources:
        folders, files = _read_by(source)
        if inside := [folder for folder in folders if place.is_relative_to(folder)]:
            what = "is" if inside[0] == place else "is in"
            raise _refused(model_dir, f"{what} the folder that the data is read from, which the files of a run break")
        if inside := [file for file in files if file.is_relative_to(place)]:
            raise _refused(model_dir, f"holds the data: {inside[0].name!r} is read from it")
    if len(found := list(_folders_of_images(place))) > 1:
        named = f"{found[0]!r} and {found[1]!r} hold images"
        raise _refused(model_dir, f"looks like a folder of data, {named}: the folders of a run would look like classes")


def _refused(model_dir: Any, reason: str) -> UsageError:
    return UsageError(
        reason,
        key="model_dir",
        received=os.fspath(model_dir),
        remedy=f"name another directory, such as 'runs/{Path(model_dir).resolve().name}'",
    )


def _read_by(source: Any) -> tuple[list[Path], list[Path]]:
    """Returns the folders of classes that a source reads, and its other files."""
    if isinstance(source, ImageSource):
        return _resolved(source.samples.folders), _resolved(source.samples.files)
    if isinstance(source, ParquetSource):
        return [], _resolved(source.files)
    paths, classes = file_paths(source), set(class_names(source))
    roots = {os.path.dirname(os.path.dirname(path)) for path in paths if Path(path).parent.name in classes}
    return _resolved(sorted(roots)), _resolved(paths[:_MOST_ENTRIES])


def _resolved(paths: Iterable[str]) -> list[Path]:
    return [Path(path).resolve() for path in paths]


def _folders_of_images(place: Path, depth: int = 2) -> Iterator[str]:
    """Yields the folders in a directory that hold images, as in `cats/` or `train/cats/`."""
    for folder in _entries(place):
        if not folder.is_dir():
            continue
        if any(entry.name.lower().endswith(SUFFIXES) for entry in _entries(folder.path)):
            yield os.path.relpath(folder.path, place)
        elif depth > 1:
            yield from (os.path.join(folder.name, name) for name in _folders_of_images(Path(folder.path), depth - 1))


def _entries(folder: str | Path) -> list[os.DirEntry[str]]:
    """Returns the first entries of a folder that are not hidden; none if it cannot be read."""
    try:
        with os.scandir(folder) as entries:
            found = [entry for entry, _ in zip(entries, range(_MOST_ENTRIES), strict=False)]
    except OSError:
        return []
    return sorted((entry for entry in found if not entry.name.startswith(".")), key=lambda entry: entry.name)
