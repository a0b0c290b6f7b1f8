"""Folders of record files: `train-*.tfrec`, `valid-*.tfrec` and `labels.txt`, on this machine or in a store."""

import contextlib
import dataclasses
import fnmatch
import os
from collections.abc import Iterator, Mapping
from typing import Any

from everstep.checkpoint.remote import checked, is_url, local_files, refuse_lost_slash, stored_names
from everstep.data.arguments import place, plain_number
from everstep.data.tfrecord.sources import NoRecordFiles
from everstep.errors import UsageError
from everstep.storage import is_temporary

KEY = "dataset"
"""What names such a folder, for errors."""

SPLITS = ("train", "valid")

_PATTERNS = ("{split}-*.tfrec", "{split}_*.tfrec", "{split}-*.tfrecord")
_LABELS = ("labels.txt", "label.txt")


def get_labels(dataset: str | os.PathLike[str], percentage: float = 100) -> tuple[int, list[str]]:
    """Returns how many classes a dataset has, and their names in order: the lines of its `labels.txt`.

        num_classes, label_list = get_labels("data/faces", 10)

    Args:
      dataset: The dataset's folder, or its URL in a store.
      percentage: How much of it is used. Below 100, a copy `<dataset>-subset-<percentage>` has its own labels; without
        such a copy, the classes are those of the whole dataset.

    Raises:
      NoRecordFiles: There is no `labels.txt`.
      UsageError: The file names no class, or one twice.
    """
    folder, _ = dataset_folder(dataset, percentage)
    names = _listed(folder)
    path = next((f"{folder}/{name}" for name in _LABELS if name in names), None)
    if path is None:
        raise NoRecordFiles("has no labels.txt", key=KEY, received=folder, remedy="write one with a class per line")
    try:
        here = local_files(path, KEY)[path] if is_url(path) else path
        with open(here, encoding="utf-8") as file:
            labels = [line.strip() for line in file.read().splitlines() if line.strip()]
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"cannot be read as text: {error}", key=KEY, received=path) from error
    twice = sorted({label for label in labels if labels.count(label) > 1}) if len(set(labels)) < len(labels) else []
    if twice or not labels:
        reason = f"names {f'the class {twice[0]!r} twice' if twice else 'no class'}"
        raise UsageError(reason, key=KEY, received=path, remedy="write one class per line")
    return len(labels), labels


def split_files(folder: str, split: str) -> dict[str, str]:
    """Returns the record files of a split, sorted: the user's name of each, by its local path.

    They are `<split>-*.tfrec`; if there are none, `<split>_*.tfrec` or `<split>-*.tfrecord`. Files in a store are
    fetched once.

    Raises:
      NoRecordFiles: There are none; names some of the other files.
    """
    names = _listed(folder)
    for pattern in (pattern.format(split=split) for pattern in _PATTERNS):
        if matching := sorted(fnmatch.filter(names, pattern)):
            if is_url(folder):
                return {path: url for url, path in local_files(f"{folder}/{pattern}", KEY).items()}
            return {f"{folder}/{name}": f"{folder}/{name}" for name in matching}
    others = ", ".join(repr(name) for name in sorted(names)[:5]) or "nothing"
    raise NoRecordFiles(
        f"has no file {split}-*.tfrec; it has {others}",
        key=KEY,
        received=folder,
        remedy="name the folder of the record files",
    )


def dataset_folder(dataset: str | os.PathLike[str], percentage: float) -> tuple[str, float]:
    """Returns the folder to read, and the percentage of its records.

    An existing copy `<dataset>-subset-<percentage>` is read as a whole.

    Raises:
      NoRecordFiles: There is neither of the two folders.
      UsageError: The percentage is invalid.
    """
    percentage, folder = checked_percentage(percentage), folder_path(dataset)
    if percentage == 100:
        return folder, 100
    subset = f"{folder}-subset-{percentage:g}"
    if _is_folder(subset):
        return subset, 100
    if not _is_folder(folder):
        reason = f"there is neither such a folder nor {subset!r}, a copy with {percentage:g} percent of it"
        raise NoRecordFiles(reason, key=KEY, received=folder, remedy=_where(folder))
    return folder, percentage


def folder_path(dataset: str | os.PathLike[str]) -> str:
    """Returns a folder or a URL without slashes at its end.

    Raises:
      UsageError: The value is neither a path nor a valid URL.
    """
    text = place(KEY, dataset)
    refuse_lost_slash(text, KEY)
    return checked(text, KEY) if is_url(text) else text.rstrip("/") or "/"


def checked_percentage(value: Any) -> float:
    """Returns a percentage that is more than 0 and at most 100."""
    number = plain_number(value)
    if isinstance(number, bool) or not isinstance(number, int | float) or not 0 < number <= 100:
        raise UsageError("must be more than 0 and at most 100", key="percentage", received=number)
    return 100 if number == 100 else number


def _listed(folder: str) -> list[str]:
    if not _is_folder(folder):
        raise NoRecordFiles("there is no such folder", key=KEY, received=folder, remedy=_where(folder))
    names = stored_names(folder, KEY) if is_url(folder) else os.listdir(folder)
    return [name for name in names if not is_temporary(name)]


def _where(folder: str) -> str:
    """Returns what to know about a path that does not exist."""
    return "" if is_url(folder) else f"paths are relative to {os.getcwd()!r}"


def _is_folder(folder: str) -> bool:
    return bool(stored_names(folder, KEY)) if is_url(folder) else os.path.isdir(folder)


@contextlib.contextmanager
def naming_urls(names: Mapping[str, str]) -> Iterator[None]:
    """Inside the block errors name a fetched file by its URL, not by its local path."""
    try:
        yield
    except UsageError as error:
        name = names.get(error.received) if isinstance(error.received, str) else None
        if name is None or name == error.received:
            raise
        raise UsageError([dataclasses.replace(problem, received=name) for problem in error.problems]) from error
