"""The files of a dataset folder: `train-*.tfrec`, `valid-*.tfrec`, `labels.txt`, and smaller copies of it."""

import fnmatch
import os
from collections.abc import Iterable, Mapping

from everstep.data.record_arguments import place, plain_number
from everstep.errors import UsageError
from everstep.remote.data import local_files, stored_names
from everstep.remote.urls import checked, is_url, refuse_lost_slash
from everstep.storage import is_temporary

SPLITS = ("train", "valid")
_PATTERNS = ("{split}-*.tfrec", "{split}_*.tfrec", "{split}-*.tfrecord")
_LABELS = ("labels.txt", "label.txt")
_KEY = "dataset"


class NoRecordFiles(UsageError, FileNotFoundError):
    """A dataset has no files of the kind asked for; also a `FileNotFoundError`."""


def record_files(folder: str, split: str) -> dict[str, str]:
    """Returns the record files of a split, sorted by name: how the user knows each, by its path on this machine.

    They are `<split>-*.tfrec`; where there are none, `<split>_*.tfrec` or `<split>-*.tfrecord`. Those in a store are
    fetched, once.

    Raises:
      NoRecordFiles: There is none; says what there is instead.
    """
    names = _listed(folder, f"no {split} records")
    for pattern in _PATTERNS:
        if found := sorted(fnmatch.filter(names, pattern.format(split=split))):
            return _fetched(folder, pattern.format(split=split)) if is_url(folder) else _itself(folder, found)
    there = ", ".join(repr(name) for name in sorted(names)[:5]) or "nothing"
    raise NoRecordFiles(f"{folder!r} has no file {split}-*.tfrec; it has {there}: name the folder of the record files")


def _fetched(folder: str, pattern: str) -> dict[str, str]:
    return {path: url for url, path in local_files(f"{folder}/{pattern}", _KEY).items()}


def _itself(folder: str, names: Iterable[str]) -> dict[str, str]:
    return {f"{folder}/{name}": f"{folder}/{name}" for name in names}


def get_labels(dataset: str | os.PathLike[str], percentage: float = 100) -> tuple[int, list[str]]:
    """Returns how many classes a dataset has, and their names in order: the lines of its `labels.txt`.

        num_classes, label_list = get_labels("data/faces", 10)

    Args:
      dataset: The dataset's folder, or its URL in a store.
      percentage: How much of it is used. Below 100, a copy `<dataset>-subset-<percentage>` has labels of its own;
        where there is none, the classes are those of the whole.

    Raises:
      NoRecordFiles: There is no `labels.txt`.
      UsageError: It names no class, or one twice.
    """
    folder, _ = dataset_folder(dataset, percentage)
    names = _listed(folder, "no labels")
    path = next((f"{folder}/{name}" for name in _LABELS if name in names), None)
    if path is None:
        raise NoRecordFiles(f"there is no {folder + '/labels.txt'!r}: write one with a class per line")
    labels = [line.strip() for line in _text(path).splitlines()]
    labels = [label for label in labels if label]
    twice = sorted({label for label in labels if labels.count(label) > 1}) if len(set(labels)) < len(labels) else []
    if twice or not labels:
        raise UsageError(f"{path!r} names {f'the class {twice[0]!r} twice' if twice else 'no class'}: one per line")
    return len(labels), labels


def dataset_folder(dataset: str | os.PathLike[str], percentage: float) -> tuple[str, float]:
    """Returns the folder to read, and which percentage of what is in it.

    A copy `<dataset>-subset-<percentage>` that is there is read as a whole.

    Raises:
      UsageError: It is no percentage.
    """
    percentage = plain_number(percentage)
    if isinstance(percentage, bool) or not isinstance(percentage, int | float) or not 0 < percentage <= 100:
        raise UsageError(f"percentage: received {percentage!r}, must be more than 0 and at most 100")
    folder = dataset_path(dataset)
    if percentage == 100:
        return folder, 100
    subset = f"{folder}-subset-{percentage:g}"
    return (subset, 100) if _is_folder(subset) else (folder, percentage)


def dataset_path(dataset: str | os.PathLike[str]) -> str:
    """Returns a folder or a URL without slashes at its end.

    Raises:
      UsageError: It is no URL of a store.
    """
    text = place(_KEY, dataset)
    refuse_lost_slash(text, _KEY)
    return checked(text, _KEY) if is_url(text) else text.rstrip("/") or "/"


def naming_urls(error: UsageError, names: Mapping[str, str]) -> UsageError:
    """Returns an error that speaks of files by the URLs they were fetched from, not by their copies here.

    Args:
      error: Any error.
      names: The URL or path by which the user knows a file, by its path on this machine.
    """
    text = str(error)
    for path, name in names.items():
        text = text.replace(repr(path), repr(name))
    return error if text == str(error) else UsageError(text)


def _listed(folder: str, what: str) -> list[str]:
    if not _is_folder(folder):
        relative = "" if is_url(folder) else f"; paths are relative to {os.getcwd()!r}"
        raise NoRecordFiles(f"{what}: there is no folder {folder!r}{relative}")
    names = stored_names(folder, _KEY) if is_url(folder) else os.listdir(folder)
    return [name for name in names if not is_temporary(name)]


def _is_folder(folder: str) -> bool:
    return bool(stored_names(folder, _KEY)) if is_url(folder) else os.path.isdir(folder)


def _text(path: str) -> str:
    try:
        here = local_files(path, _KEY)[path] if is_url(path) else path
        with open(here, encoding="utf-8") as file:
            return file.read()
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"{path!r} cannot be read as text: {error}") from error
