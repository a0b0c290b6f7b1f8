"""Which record files a configuration names, and how one of them is read."""

import re
from collections.abc import Callable, Sequence
from typing import Any

from everstep.config.problem import ConfigError, Problem
from everstep.data.tf_data import load_tensorflow
from everstep.errors import UsageError, nearest
from everstep.remote.data import is_known, local_files
from everstep.storage import is_temporary

Patterns = str | Sequence[str]

COMPRESSIONS = ("", "GZIP", "ZLIB")
"""How a TFRecord file may be compressed."""

ReadFile = Callable[[Any], Any]
"""Makes a dataset of records from a file's path, a tensor."""

_FILE_TYPES = {"tfrecord": "", "tfrecord_compressed": "GZIP"}


def find_files(patterns: Patterns, key: str = "input_path") -> list[str]:
    """Returns the files that the patterns match, sorted by their names, each once.

    Those in a store are fetched first, and what is returned is where they are on this machine.

    Args:
      patterns: A path, a glob, several of them separated by commas, or a list of those.
      key: The configuration's key that they come from, for the messages.

    Raises:
      UsageError: There is no pattern, one of them matches nothing or cannot be looked for, or a file is empty, a
        folder or not readable.
    """
    tf = load_tensorflow("reading TFRecord files")
    found: dict[str, str] = {}  # where each is on this machine, by its name
    for pattern in _patterns(patterns, key):
        matches = local_files(pattern, key) if is_known(pattern) else _matches(tf, pattern, key)
        if not matches:
            text = f"no file matches {pattern!r}: paths are relative to the working folder"
            raise ConfigError([Problem(key, text)])
        found.update(matches)
    problems = [Problem(key, text) for name in sorted(found) if (text := _unusable(tf, name, found[name]))]
    if problems:
        raise ConfigError(problems)
    return [found[name] for name in sorted(found)]


def read_records(compression: str = "") -> ReadFile:
    """Returns the function that reads a TFRecord file.

    Raises:
      UsageError: TFRecord files know no such compression.
    """
    if compression not in COMPRESSIONS:
        known = ", ".join(repr(name) for name in COMPRESSIONS)
        raise UsageError(f"compression is {compression!r}; TFRecord files have one of {known}")
    tf = load_tensorflow("reading TFRecord files")
    return lambda file: tf.data.TFRecordDataset(file, compression)


def pick_dataset_fn(file_type: str) -> ReadFile:
    """Returns a `dataset_fn` for `InputReader` by Model Garden's name: `tfrecord`, `tfrecord_compressed` (GZIP).

    Raises:
      UsageError: There is no such file type.
    """
    if file_type not in _FILE_TYPES:
        raise UsageError(f"unknown file type {file_type!r}; {nearest(file_type, _FILE_TYPES)}")
    return read_records(_FILE_TYPES[file_type])


def _matches(tf: Any, pattern: str, key: str) -> dict[str, str]:
    """Returns the files that a pattern matches; never drafts, what a killed process left of writing them."""
    try:
        if tf.io.gfile.exists(pattern):
            return {pattern: pattern}
        return {file: file for file in tf.io.gfile.glob(pattern) if not is_temporary(file)}
    except (tf.errors.OpError, OSError) as error:  # a kind of storage that TensorFlow does not know, or cannot reach
        text = f"{pattern!r} cannot be looked for: {first_line(error)}"
        raise ConfigError([Problem(key, text)]) from error


def first_line(error: Exception) -> str:
    """Returns TensorFlow's own words in one line, without the names of its operations."""
    line = str(getattr(error, "message", error)).partition("\n")[0]
    return re.sub(r"\{\{.*?\}\} | \[Op:.*", "", line)


def _patterns(patterns: Patterns, key: str) -> list[str]:
    listed = [patterns] if isinstance(patterns, str) else list(patterns)
    if not all(isinstance(entry, str) for entry in listed):
        raise ConfigError([Problem(key, f"received {patterns!r}; expected a path, a glob, or a list of those")])
    globs = [part.strip() for entry in listed for part in entry.split(",") if part.strip()]
    if not globs:
        text = f"names no record files: set {key} to a path or a glob such as 'data/*.tfrecord'"
        raise ConfigError([Problem(key, text)])
    return globs


def _unusable(tf: Any, name: str, file: str) -> str:
    """Returns why a file of this machine cannot hold records, empty if it may; distant ones are not asked."""
    if "://" in file:
        return ""
    if tf.io.gfile.isdir(file):
        return f"{name!r} is a folder: name its files, such as {name.rstrip('/') + '/*'!r}"
    if not tf.io.gfile.stat(file).length:
        return f"{name!r} is empty, 0 bytes: write it again, or leave it out"
    try:
        with open(file, "rb"):
            return ""
    except OSError as error:
        return f"{name!r} cannot be read: {error.strerror}"
