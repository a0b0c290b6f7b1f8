"""What a catalog may say of its data: entries by name, each checked, everything wrong with them told at once."""

import dataclasses
import difflib
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from everstep.catalog import kinds
from everstep.catalog.dataset import refusals
from everstep.config.problem import ConfigError, Problem, join, show
from everstep.errors import UsageError, nearest
from everstep.remote import is_url
from everstep.remote.urls import checked, refuse_lost_slash

KEYS = ("type", "filepath", "load_args", "save_args", "versioned", "metadata")
_MAPPINGS = ("load_args", "save_args", "metadata")
_ALIKE = 0.8

Origin = Callable[[str], str]
"""Tells where the value at a key path was written."""


@dataclasses.dataclass(frozen=True)
class Entry:
    """One name of a catalog.

    Attributes:
      name: `mnist.raw`.
      filepath: As it was written, interpolated: relative to the project's root, absolute, or a URL.
      type: A type of `kinds.SHIPPED`, or a dotted name.
      load_args: For the type's `load`.
      save_args: For its `save`.
      versioned: Whether saving makes a new version.
      metadata: Whatever the project wants to say of it.
      origin: File and line.
    """

    name: str
    filepath: str
    type: str
    load_args: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    save_args: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    versioned: bool = False
    metadata: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    origin: str = ""

    def as_dict(self) -> dict[str, Any]:
        """Returns it as a catalog would say it, without what is at its default."""
        told = {"type": self.type, "filepath": self.filepath}
        return told | {key: value for key in KEYS[2:] if (value := getattr(self, key))}


def is_entry(value: Any) -> bool:
    """Tells whether a mapping describes data, and is no group of names."""
    return isinstance(value, Mapping) and not set(KEYS).isdisjoint(value)


def parsed(tree: Mapping[str, Any], origin: Origin) -> dict[str, Entry]:
    """Returns the entries of a tree by their names.

    Raises:
      ConfigError: With everything that is wrong in it, each with its key path, file and line.
    """
    found, problems = dict[str, Entry](), list[Problem]()
    for name, value in _walk(tree, ""):
        wrong = list(_problems(value))
        if wrong:
            problems += [Problem(join(name, key), text, origin(join(name, key))) for key, text in wrong]
        else:
            found[name] = _entry(name, value, origin(name))
    if problems:
        raise ConfigError(problems)
    return found


def _walk(tree: Mapping[str, Any], path: str) -> Iterator[tuple[str, Any]]:
    """Yields entries with their names; names that begin with an underscore are for interpolation alone."""
    for key, value in tree.items():
        if str(key).startswith("_"):
            continue
        name = join(path, str(key))
        if isinstance(value, str):
            yield name, {"filepath": value}
        elif isinstance(value, Mapping) and not is_entry(value):
            yield from _group(value, name)
        else:
            yield name, value


def _group(value: Mapping[str, Any], name: str) -> Iterator[tuple[str, Any]]:
    misspelt = next((key for key in value if difflib.get_close_matches(str(key), KEYS, n=1, cutoff=_ALIKE)), None)
    if misspelt is not None or not value:
        yield name, value  # an entry whose keys are wrong
    else:
        yield from _walk(value, name)


def _entry(name: str, value: Mapping[str, Any], origin: str) -> Entry:
    given = {key: item for key, item in value.items() if item is not None}
    given["type"] = kinds.kind_name(given.get("type"), given["filepath"])
    return Entry(name=name, origin=origin, **given)


def _problems(value: Any) -> Iterator[tuple[str, str]]:
    """Yields the key below an entry and what is wrong with it."""
    if not isinstance(value, Mapping):
        yield "", f"expected a path, or the keys type and filepath, received {show(value)}"
        return
    unknown = [str(key) for key in value if key not in KEYS]
    yield from ((key, _unknown(key)) for key in unknown)
    if "filepath" not in value and unknown:
        return  # it is one of them, perhaps
    yield from _wrong_values(value)
    if isinstance(value.get("filepath"), str):
        yield from _wrong_kind(value)


def _unknown(key: str) -> str:
    if key == "credentials":
        return "credentials are no part of a catalog: they come from the environment, as AWS_ACCESS_KEY_ID"
    return f"unknown key; {nearest(key, KEYS)}"


def _wrong_values(value: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    path = value.get("filepath")
    if not isinstance(path, str) or not path.strip():
        yield "filepath", f"expected a path or a URL, received {show(path)}"
    elif text := _bad_url(path):
        yield "filepath", text
    if not isinstance(value.get("type"), str | None):
        yield "type", f"expected the name of a type, received {show(value['type'])}"
    if not isinstance(value.get("versioned"), bool | None):
        yield "versioned", f"expected true or false, received {show(value['versioned'])}"
    for key in _MAPPINGS:
        if not isinstance(value.get(key), Mapping | None):
            yield key, f"expected keys with values, received {show(value[key])}"


def _bad_url(path: str) -> str:
    try:
        refuse_lost_slash(path, "filepath")
        if is_url(path):
            checked(path, "filepath")
    except UsageError as error:
        return str(error).removeprefix("filepath: ")
    return ""


def _wrong_kind(value: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    given = value.get("type")
    try:
        name = kinds.kind_name(given if isinstance(given, str) else None, value["filepath"])
    except UsageError as error:
        yield "type", str(error)
        return
    for key, verb in (("load_args", "load"), ("save_args", "save")):
        if name in kinds.SHIPPED and isinstance(value.get(key), Mapping):
            refused = refusals(kinds.SHIPPED[name], verb, value[key])  # type: ignore[arg-type]
            yield from ((join(key, argument), text) for argument, text in refused.items())
