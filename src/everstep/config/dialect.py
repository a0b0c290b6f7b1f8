"""The YAML that config files are written in: YAML 1.2's plain values, read by a safe loader.

Stock PyYAML reads `1e-3` as text, `off` as False and `12:30` as a number, and keeps the last of two equal
keys. Here `1e-3` is a float, only true and false are booleans, `None` is null like `null` and `~`, and a
repeated key is an error with its line.
"""

import enum
import pathlib
import re
from collections.abc import Hashable, Iterable, Iterator
from typing import Any

import yaml

from everstep import redaction
from everstep.errors import UsageError, join

_PLAIN = (
    ("null", r"~|null|Null|NULL|None|", ["~", "n", "N", ""]),
    ("bool", r"true|True|TRUE|false|False|FALSE", list("tTfF")),
    ("int", r"[-+]?[0-9]+|0o[0-7]+|0x[0-9a-fA-F]+", list("-+0123456789")),
    (
        "float",
        r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?|[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)",
        list("-+.0123456789"),
    ),
    ("merge", r"<<", ["<"]),
)


_REFERENCE = re.compile(r"(\\*)\$\{")


class _Values:
    """How this dialect's plain values are read."""

    yaml_implicit_resolvers: dict[str, Any] = {}

    def construct_plain_int(self: Any, node: yaml.ScalarNode) -> int:
        """Reads decimal (also with leading zeros), 0x and 0o integers."""
        text = self.construct_scalar(node)
        return int(text, 0) if text[:2] in ("0x", "0o") else int(text)

    def construct_tuple(self: Any, node: yaml.SequenceNode) -> tuple[Any, ...]:
        """Reads `!!python/tuple`, which other writers put before a tuple of plain values."""
        return tuple(self.construct_sequence(node, deep=True))


class Loader(_Values, yaml.SafeLoader):
    """PyYAML's safe loader with this dialect's plain values."""


class FastLoader(_Values, getattr(yaml, "CSafeLoader", yaml.SafeLoader)):  # type: ignore[misc]
    """The same with libyaml, where PyYAML has it: five times as fast, but its errors say less."""


class Dumper(yaml.SafeDumper):
    """Writes what both this dialect and stock PyYAML read back: text that either would misread is quoted."""

    def ignore_aliases(self, data: Any) -> bool:
        """Writes every value out, shared or not."""
        return True


def load(text: str | bytes) -> Any:
    """Returns the value of one YAML document.

    Raises:
      yaml.YAMLError: Bad syntax, an unsafe tag, a repeated key or a value that holds itself.
    """
    return _loaded(Loader(text))[0]


def load_with_lines(text: str | bytes) -> tuple[Any, dict[str, int]]:
    """Returns the value of a file's YAML document, and the line of each key in it by its path, as in `layers[0].units`.

    Raises:
      yaml.YAMLError: As `load`.
    """
    try:
        return _loaded(FastLoader(text))
    except yaml.YAMLError:
        return _loaded(Loader(text))  # for its error


def _loaded(loader: Any) -> tuple[Any, dict[str, int]]:
    try:
        node = loader.get_single_node()
        if node is None:
            return None, {}
        _check(node, ())
        lines = dict(_lines(node, ""))  # before construction, which turns merge keys into copies
        return loader.construct_document(node), lines
    finally:
        loader.dispose()


def plain(text: str) -> Any:
    """Returns the value of one unquoted word: a number, a boolean, null, or else the text itself."""
    loader = Loader("")
    try:
        tag = loader.resolve(yaml.ScalarNode, text, (True, False))
        return text if tag.endswith(":merge") else loader.construct_object(yaml.ScalarNode(tag, text))
    finally:
        loader.dispose()


def dump(tree: Any) -> str:
    """Returns a tree as YAML, keys in their order, lists of plain values on one line.

    Raises:
      UsageError: A value has no form in YAML.
    """
    try:
        return yaml.dump(tree, Dumper=Dumper, sort_keys=False, allow_unicode=True, width=110)
    except yaml.representer.RepresenterError as error:
        value = error.args[-1]
        raise UsageError(f"YAML cannot represent a {type(value).__name__}", received=value) from None


def dump_without_secrets(tree: Any) -> str:
    """Returns the YAML text of a configuration to store: read again, it is the same one, but for its secrets."""
    return dump(redaction.tree(escaped(tree)))


def escaped(value: Any) -> Any:
    """Returns a tree as a config file spells it where text holds `${` and means just that: `\\${`."""
    if isinstance(value, dict):
        return {key: escaped(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return type(value)(escaped(item) for item in value)
    return _REFERENCE.sub(r"\1\1\\${", value) if isinstance(value, str) else value


def _check(node: yaml.Node | None, above: tuple[int, ...]) -> None:
    """Refuses a mapping that has a key twice, and a value that holds itself."""
    if not isinstance(node, yaml.CollectionNode):
        return
    if id(node) in above:
        raise yaml.composer.ComposerError(None, None, "a value cannot hold itself", node.start_mark)
    parts = node.value
    if isinstance(node, yaml.MappingNode):
        _refuse_repeated_keys(node)
        parts = [part for pair in node.value for part in pair]
    for part in parts:
        _check(part, (*above, id(node)))


def _refuse_repeated_keys(node: yaml.MappingNode) -> None:
    seen = set()
    for key, _ in node.value:
        name = (key.tag, key.value) if isinstance(key.value, Hashable) else None
        if name in seen:
            raise yaml.constructor.ConstructorError(None, None, f"the key {key.value!r} is given twice", key.start_mark)
        seen.add(name)


def _lines(node: yaml.Node, path: str) -> Iterator[tuple[str, int]]:
    if isinstance(node, yaml.SequenceNode):
        parts = [(f"[{index}]", item, item) for index, item in enumerate(node.value)]
    elif isinstance(node, yaml.MappingNode):
        parts = [(str(key.value), key, value) for key, value in node.value]
    else:
        return
    for name, key, value in parts:
        below = join(path, name)
        yield below, key.start_mark.line + 1
        yield from _lines(value, below)


def _represent_list(dumper: yaml.SafeDumper, items: Iterable[Any]) -> yaml.Node:
    # A set has no order of its own, and another one in every process.
    values = sorted(items, key=repr) if isinstance(items, (set, frozenset)) else list(items)
    is_flat = not any(isinstance(value, (dict, list, tuple)) for value in values)
    return dumper.represent_sequence("tag:yaml.org,2002:seq", values, flow_style=is_flat)


def _represent_text(dumper: yaml.SafeDumper, text: str) -> yaml.Node:
    # Only double quotes keep every line break and control character as it is.
    style = None if text.isprintable() else '"'
    return dumper.represent_scalar("tag:yaml.org,2002:str", str.__str__(text), style=style)


def _add_resolvers() -> None:
    for name, pattern, first in _PLAIN:
        for kind in (Loader, FastLoader, Dumper):
            kind.add_implicit_resolver(f"tag:yaml.org,2002:{name}", re.compile(rf"(?:{pattern})\Z"), first)


_add_resolvers()
for _loader in (Loader, FastLoader):
    _loader.add_constructor("tag:yaml.org,2002:int", _loader.construct_plain_int)
    _loader.add_constructor("tag:yaml.org,2002:python/tuple", _loader.construct_tuple)
for _kind in (list, tuple, set, frozenset):
    Dumper.add_representer(_kind, _represent_list)
Dumper.add_representer(str, _represent_text)
Dumper.add_multi_representer(str, _represent_text)
Dumper.add_multi_representer(int, lambda dumper, number: dumper.represent_int(int(number)))
Dumper.add_multi_representer(float, lambda dumper, number: dumper.represent_float(float(number)))
Dumper.add_multi_representer(enum.Enum, lambda dumper, item: dumper.represent_data(item.value))
Dumper.add_multi_representer(pathlib.PurePath, lambda dumper, path: dumper.represent_str(str(path)))
