"""Where values come from: config files, groups and overrides, read into layers; nothing is applied yet."""

import dataclasses
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from everstep import redaction
from everstep.config import groups
from everstep.config.layer import Layer, walk
from everstep.config.overrides import nested, parse_overrides
from everstep.config.problem import ConfigError, Problem, show
from everstep.errors import UsageError

HEADER = ("experiment", "imports", "gin", "added", "dropped")
"""Keys at a file's top that say something about the request itself, beside the sections of the configuration.

A stored configuration names under `added` and `dropped` the keys by which it differs from the experiment's own.
"""

_LISTS = ("imports", "added", "dropped")


@dataclasses.dataclass
class Sources:
    """What files and overrides say.

    Attributes:
      files: The values in files, in order.
      overrides: The values in overrides, which come later.
      header: What files say under each of the `HEADER` keys, with where they do.
    """

    files: list[Layer]
    overrides: list[Layer]
    header: dict[str, list[tuple[Any, str]]]


def read(
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
        homes.append(_directory(config_dir))
    choices, values = _sorted(overrides, homes)
    layers: list[Layer] = []
    for path, layer in opened:
        layers += _composed(path, layer, choices.pop(path.parent, [])) if "defaults" in layer.tree else [layer]
    for home, chosen in choices.items():
        layers += groups.compose(home, None, chosen)
    header: dict[str, list[tuple[Any, str]]] = {key: [] for key in HEADER}
    layers = [part for layer in layers for part in (*_edits(layer), _headless(layer, header))]
    sources = Sources(layers, values, header)
    _refuse_redacted([*sources.files, *sources.overrides])
    _refuse_redacted([Layer(origin, {"gin": text}) for text, origin in header["gin"]])
    return sources


def _directory(config_dir: str) -> Path:
    if not Path(config_dir).is_dir():
        raise UsageError(f"--config-dir {config_dir}: no such directory; name one that holds config groups")
    return Path(config_dir)


def _sorted(overrides: Iterable[str], homes: Sequence[Path]) -> tuple[dict[Path, list[str]], list[Layer]]:
    """Returns the choices for each directory of groups, and the values."""
    choices: dict[Path, list[str]] = {}
    values: list[Layer] = []
    for text in overrides:
        home = next((home for home in homes if groups.is_choice(text, home)), None)
        if home is not None:
            choices.setdefault(home, []).append(text)
        else:
            values += parse_overrides(text)
    return choices, values


def _composed(path: Path, layer: Layer, choices: Sequence[str]) -> list[Layer]:
    if "hydra" in layer.tree:
        raise ConfigError([Problem("hydra", "Hydra's own settings are not used here", layer.origin_of("hydra"))])
    return groups.compose(path.parent, path.stem, choices)


def _edits(layer: Layer) -> Iterator[Layer]:
    """Yields what makes the keys of a stored configuration those of the experiment, before its values are set."""
    for key, edit in (("added", "add"), ("dropped", "drop")):
        for path in _checked(key, layer) if key in layer.tree else ():
            yield Layer(layer.origin_of(key), nested(path, None), edit=edit)  # type: ignore[arg-type]


def _headless(layer: Layer, header: Mapping[str, list[tuple[Any, str]]]) -> Layer:
    """Returns the layer without the keys of the header, which are noted down."""
    for key in HEADER:
        if key in layer.tree:
            header[key].append((_checked(key, layer), layer.origin_of(key)))
    return dataclasses.replace(layer, tree={key: value for key, value in layer.tree.items() if key not in HEADER})


def _checked(key: str, layer: Layer) -> Any:
    value = layer.tree[key]
    texts = value if key in _LISTS and isinstance(value, list) else [value]
    if not all(isinstance(text, str) and text for text in texts) or (key in _LISTS) != isinstance(value, list):
        expected = "a list of names" if key in _LISTS else "text"
        raise ConfigError([Problem(key, f"expected {expected}, received {show(value)}", layer.origin_of(key))])
    return value


def _refuse_redacted(layers: Iterable[Layer]) -> None:
    """Refuses values that were blacked out when the file was stored."""
    problems = []
    for layer in layers:
        for path, value in walk(layer.tree):
            if redaction.holds_redacted(value):
                text = f"received {value!r}: it was blacked out when the file was stored; give it again: {path}=…"
                problems.append(Problem(path, text, layer.origin_of(path)))
    if problems:
        raise ConfigError(problems)
