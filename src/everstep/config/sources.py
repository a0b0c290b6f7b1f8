"""Everything that one request names, read as layers: config files, choices in groups, overrides. Applies nothing."""

import dataclasses
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from everstep import redaction
from everstep.config.groups import compose_groups, is_choice
from everstep.config.layers import Layer, nested, walk
from everstep.config.overrides import override_layers
from everstep.errors import Problem, UsageError

HEADER = ("experiment", "imports", "gin", "added", "dropped")
"""Keys at a file's top that are about the request itself, beside the sections of the configuration.

A stored configuration names under `added` and `dropped` the keys by which it differs from the experiment's own.
"""

_LISTS = ("imports", "added", "dropped")


@dataclasses.dataclass
class Sources:
    """The values of files and overrides.

    Attributes:
      files: The values in files, in order.
      overrides: The values in overrides, which come later.
      header: What files have under each of the `HEADER` keys, with the origin.
    """

    files: list[Layer]
    overrides: list[Layer]
    header: dict[str, list[tuple[Any, str]]]


def read_sources(
    files: Iterable[str | os.PathLike[str]] = (), overrides: Iterable[str] = (), config_dir: str | None = None
) -> Sources:
    """Reads files and overrides.

    Args:
      files: Config files. One with a `defaults` list brings the files that it lists, from its own directory.
      overrides: Values, and choices in the groups of those directories or of `config_dir`.
      config_dir: A directory of groups.

    Raises:
      UsageError: Something cannot be read or is not well-formed.
    """
    opened = [(Path(path), Layer.from_file(path)) for path in files]
    homes = [path.parent for path, layer in opened if "defaults" in layer.tree]
    if config_dir is not None:
        if not Path(config_dir).is_dir():
            reason, remedy = "no such directory", "name one that holds config groups"
            raise UsageError(reason, key=f"--config-dir {config_dir}", remedy=remedy)
        homes.append(Path(config_dir))
    choices, values = _sorted_overrides(overrides, homes)
    layers: list[Layer] = []
    for path, layer in opened:
        if "defaults" not in layer.tree:
            layers.append(layer)
            continue
        if "hydra" in layer.tree:
            raise UsageError("Hydra's own settings are not used here", key="hydra", origin=layer.origin_of("hydra"))
        layers += compose_groups(path.parent, path.stem, choices.pop(path.parent, []))
    for home, chosen in choices.items():
        layers += compose_groups(home, None, chosen)
    header: dict[str, list[tuple[Any, str]]] = {key: [] for key in HEADER}
    layers = [part for layer in layers for part in (*_edits(layer), _without_header(layer, header))]
    _refuse_redacted([*layers, *values, *(Layer(origin, {"gin": text}) for text, origin in header["gin"])])
    return Sources(layers, values, header)


def _sorted_overrides(overrides: Iterable[str], homes: Sequence[Path]) -> tuple[dict[Path, list[str]], list[Layer]]:
    """Returns the choices for each directory of groups, and the values."""
    choices: dict[Path, list[str]] = {}
    values: list[Layer] = []
    for text in overrides:
        home = next((home for home in homes if is_choice(text, home)), None)
        if home is not None:
            choices.setdefault(home, []).append(text)
        else:
            values += override_layers(text)
    return choices, values


def _edits(layer: Layer) -> Iterator[Layer]:
    """Yields layers that give the experiment the keys of a stored configuration, before its values are set."""
    for key, edit in (("added", "add"), ("dropped", "drop")):
        for path in _header_value(key, layer) if key in layer.tree else ():
            yield Layer(layer.origin_of(key), nested(path, None), edit=edit)  # type: ignore[arg-type]


def _without_header(layer: Layer, header: Mapping[str, list[tuple[Any, str]]]) -> Layer:
    """Returns the layer without the keys of the header, which are collected in `header`."""
    for key in HEADER:
        if key in layer.tree:
            header[key].append((_header_value(key, layer), layer.origin_of(key)))
    return dataclasses.replace(layer, tree={key: value for key, value in layer.tree.items() if key not in HEADER})


def _header_value(key: str, layer: Layer) -> Any:
    value = layer.tree[key]
    texts = value if key in _LISTS and isinstance(value, list) else [value]
    if not all(isinstance(text, str) and text for text in texts) or (key in _LISTS) != isinstance(value, list):
        expected = "a list of names" if key in _LISTS else "text"
        raise UsageError(f"expected {expected}", key=key, received=value, origin=layer.origin_of(key))
    return value


def _refuse_redacted(layers: Iterable[Layer]) -> None:
    """Refuses values that were redacted when the file was stored."""
    problems = []
    for layer in layers:
        found = [(path, value) for path, value in walk(layer.tree) if redaction.holds_redacted(value)]
        problems += layer.located(
            Problem(path, "was redacted when the file was stored", received=value, remedy=f"specify it again: {path}=…")
            for path, value in found
        )
    if problems:
        raise UsageError(problems)
