"""Reading a config file: YAML, JSON or TOML, by its suffix; with the line of each key."""

import dataclasses
import json
import os
import pathlib
import re
import tomllib
from collections.abc import Callable, Iterator
from typing import Any

import yaml

from everstep import redaction
from everstep.config import dialect
from everstep.errors import UsageError, join

SUFFIXES = (".yaml", ".yml", ".json", ".toml")
"""File names that are taken for config files wherever text could also mean something else."""

_TOML_TABLE = re.compile(r"\s*\[([\w.]+)\]\s*(?:#|$)")
_TOML_KEY = re.compile(r"\s*([\w.]+)\s*=")


@dataclasses.dataclass(frozen=True)
class Document:
    """The content of a config file.

    Attributes:
      tree: Its values.
      lines: The line of each key by its path, as far as they are known.
    """

    tree: dict[str, Any]
    lines: dict[str, int]


def load_file(path: str | os.PathLike[str]) -> dict[str, Any]:
    """Returns the tree of values in a file; an empty file has none.

    Args:
      path: A `.json` or `.toml` file; any other name is read as YAML (see `everstep.config.dialect`).

    Raises:
      UsageError: The file cannot be read or has bad syntax (named with its line), or is not a mapping.
    """
    return read_file(path).tree


def read_file(path: str | os.PathLike[str]) -> Document:
    """Returns the tree of values in a file as `load_file` does, and where in the file each is.

    Raises:
      UsageError: As `load_file`.
    """
    text, suffix = _text(path), pathlib.Path(path).suffix.lower()
    read = {".json": _json_with_lines, ".toml": _toml_with_lines}.get(suffix, dialect.load_with_lines)
    value, lines = _parsed(read, text, str(path))
    return Document(as_tree(value, str(path)), lines)


def load_text(text: str, origin: str) -> Any:
    """Returns the value of inline JSON or YAML; `origin` names it in errors.

    Raises:
      UsageError: Bad syntax.
    """
    return _parsed(_inline, text, origin)


def as_tree(value: Any, origin: str) -> dict[str, Any]:
    """Returns a parsed document as a tree of values.

    Raises:
      UsageError: The document is something else than a mapping.
    """
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise UsageError("expected keys with values", key=origin, received=value)
    return value


def _text(path: str | os.PathLike[str]) -> str:
    try:
        return pathlib.Path(path).read_text(encoding="utf-8-sig")
    except FileNotFoundError:
        raise UsageError("does not exist", key=f"config file {path}") from None
    except IsADirectoryError:
        raise UsageError("is a directory", key=f"config file {path}") from None
    except UnicodeDecodeError as error:
        raise UsageError(f"is not UTF-8 text: {error}", key=f"config file {path}") from None
    except OSError as error:
        raise UsageError(f"cannot be read: {error.strerror}", key=f"config file {path}") from None


def _parsed(read: Callable[[str], Any], text: str, origin: str) -> Any:
    try:
        return read(text)
    except (yaml.YAMLError, ValueError) as error:
        redaction.learn_text(text)  # the message may quote a password that looks like syntax, such as !abc
        line, reason = None, str(error)  # TOML's message has its own line number
        if isinstance(error, yaml.MarkedYAMLError):
            mark = error.problem_mark or error.context_mark
            line, reason = mark.line + 1 if mark else None, error.problem or reason
        elif isinstance(error, json.JSONDecodeError):
            line, reason = error.lineno, error.msg
        key = f"{origin}, line {line}" if line else origin
        raise UsageError(redaction.text(reason), key=redaction.text(key)) from None


def _inline(text: str) -> Any:
    try:
        return _json(text)
    except ValueError:
        return dialect.load(text)


def _toml_with_lines(text: str) -> tuple[Any, dict[str, int]]:
    return tomllib.loads(text), dict(_toml_lines(text))


def _toml_lines(text: str) -> Iterator[tuple[str, int]]:
    """Yields plain tables and keys with their lines: where keys are quoted or values nested, the nearest one above."""
    table = ""
    for number, line in enumerate(text.splitlines(), start=1):
        if header := _TOML_TABLE.match(line):
            table = header[1]
            yield table, number
        elif key := _TOML_KEY.match(line):
            yield join(table, key[1]), number


def _json_with_lines(text: str) -> tuple[Any, dict[str, int]]:
    value = _json(text)
    try:
        return value, dialect.load_with_lines(text)[1]
    except yaml.YAMLError:  # YAML reads most JSON, but not all of its escapes
        return value, {}


def _json(text: str) -> Any:
    return json.loads(text, object_pairs_hook=_unique) if text.strip() else None


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    tree = dict(pairs)
    if len(tree) < len(pairs):
        keys = [key for key, _ in pairs]
        twice = next(key for key in keys if keys.count(key) > 1)
        raise ValueError(f"the key {twice!r} is given twice")
    return tree
