"""Where values come from: config files, groups of files and overrides, read as layers; nothing is applied yet.

A layer is a tree of values that knows the file, line or override of each. `everstep.config.compose` merges layers into
a config; any other source of values only has to build layers.
"""

import dataclasses
import difflib
import logging
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from everstep import redaction
from everstep.config import dialect
from everstep.config.files import SUFFIXES, as_tree, load_text, read_file
from everstep.errors import Problem, UsageError, join, nearest

_LAST_STEP = re.compile(r"(\.[^.\[]*|\[\d+\]|^[^.\[]*)$")
_MISTYPED = 0.85  # from this similarity on, a key is taken for a known one that was mistyped


@dataclasses.dataclass(frozen=True)
class Layer:
    """Values from one place.

    Attributes:
      origin: The file, flag or override, as an error message names it.
      tree: Nested values by field name.
      lines: For a file, the line of each key by its path, as in `layers[0].units`.
      edit: What is done with the values: `set` existing keys, `add` new ones, `drop` the keys; `set_known` skips
        unknown keys with a warning.
    """

    origin: str
    tree: Mapping[str, Any]
    lines: Mapping[str, int] = dataclasses.field(default_factory=dict)
    edit: Literal["set", "add", "drop", "set_known"] = "set"

    def __post_init__(self) -> None:
        redaction.learn(self.tree)  # before any message can quote a value

    @classmethod
    def from_file(
        cls, path: str | os.PathLike[str], edit: Literal["set", "add", "drop", "set_known"] = "set"
    ) -> "Layer":
        """Returns the values of a config file.

        Raises:
          UsageError: The file cannot be read, or has bad syntax.
        """
        document = read_file(path)
        return cls(str(path), document.tree, document.lines, edit)

    def origin_of(self, path: str) -> str:
        """Returns where the value at a key path is written: `conf.yaml:12`, or the origin where there are no lines."""
        while path and path not in self.lines:
            path = _LAST_STEP.sub("", path)
        return f"{self.origin}:{self.lines[path]}" if path else self.origin

    def located(self, problems: Iterable[Problem]) -> list[Problem]:
        """Returns problems with the place of each key in this layer."""
        return [dataclasses.replace(problem, origin=self.origin_of(problem.key)) for problem in problems]

    def moved(self, source: str, target: str) -> "Layer":
        """Returns the values below the key `source` as those of `target`, each with its line; empty keys mean all.

        Layer("f", {"a": {"x": 1}}).moved("a", "b.c").tree  # {"b": {"c": {"x": 1}}}
        """
        value: Any = self.tree
        for name in source.split(".") if source else ():
            value = value[name]
        inside = {key: line for key, line in self.lines.items() if not source or is_at_or_below(key, source)}
        lines = {join(target, key[len(source) :].removeprefix(".")): line for key, line in inside.items()}
        return dataclasses.replace(self, tree=nested(target, value) if target else value, lines=lines)


def walk(tree: Mapping[str, Any], path: str = "") -> Iterator[tuple[str, Any]]:
    """Yields every value in a tree with its key path; lists are values, empty mappings too."""
    for key, value in tree.items():
        below = join(path, str(key))
        if isinstance(value, Mapping) and value:
            yield from walk(value, below)
        else:
            yield below, value


def nested(key: str, value: Any) -> dict[str, Any]:
    """Returns `value` in a tree, at a dotted key."""
    for name in reversed(key.split(".")):
        value = {name: value}
    return value


def is_at_or_below(path: str, top: str) -> bool:
    """Returns whether a key path is `top`, or leads to a part of it."""
    return path == top or path.startswith((f"{top}.", f"{top}["))


def last_setter(layers: Iterable[Layer], path: str) -> Layer | None:
    """Returns the last of the layers that sets a key path: itself, a part of it or what contains it."""
    found = None
    for layer in layers:
        if any(is_at_or_below(key, path) or is_at_or_below(path, key) for key, _ in walk(layer.tree)):
            found = layer
    return found


def origin_of(layers: Iterable[Layer], path: str) -> str:
    """Returns where the last of the layers that sets a key path does so; empty where none does."""
    setter = last_setter(layers, path) if path else None
    return setter.origin_of(path) if setter else ""


def with_origins(problems: Iterable[Problem], layers: Sequence[Layer]) -> list[Problem]:
    """Returns problems with the place of each value, where one of the layers sets it."""
    return [
        dataclasses.replace(problem, origin=origin_of(layers, problem.key) or problem.origin) for problem in problems
    ]


def mistyped_keys(layer: Layer, known: Iterable[str], section: str = "") -> list[Problem]:
    """Returns the keys of an open section that are nearly a known one which is not set; any other may be the user's.

    Args:
      layer: The values whose keys are checked.
      known: The keys that the section is known to have.
      section: The dotted key of the section; empty for the top.
    """
    tree: Any = layer.tree
    for name in section.split(".") if section else ():
        tree = tree.get(name) if isinstance(tree, Mapping) else None
    known, tree = list(known), tree if isinstance(tree, Mapping) else {}
    unset = [name for name in known if name not in tree]
    problems = []
    for key in map(str, tree):
        meant = [] if key in known else difflib.get_close_matches(key, unset, n=2, cutoff=_MISTYPED)
        if meant:
            remedy = f"did you mean {' or '.join(map(repr, meant))}?"
            problems.append(Problem(join(section, key), "unknown key", remedy=remedy))
    return layer.located(problems)


# -- overrides: `a.b=1`, `+new=2`, `~old`, several with commas, inline YAML, or the name of a file -----------------

_KEY = r"[A-Za-z_]\w*(?:\[\d+\])?(?:\.[A-Za-z_]\w*(?:\[\d+\])?)*"
_PAIR = re.compile(rf"\s*(\+\+|\+)?({_KEY})\s*=(.*)", re.DOTALL)
_DROP = re.compile(rf"~({_KEY})")
_NEXT_PAIR = re.compile(rf",\s*(?:\+\+|\+)?{_KEY}\s*=")
_CLOSING = {"[": "]", "{": "}"}


def parse_overrides(text: str) -> list[Layer]:
    """Returns the layers in one override: its pairs, its inline mapping, or the file it names.

    Raises:
      UsageError: It is none of these.
    """
    text = text.strip()
    if _PAIR.match(text):
        return [_pair_layer(pair) for pair in _by_index(list(split_pairs(text)))]
    if drop := _DROP.fullmatch(text):
        return [Layer(f"override {text!r}", nested(drop[1], None), edit="drop")]
    if text.lower().endswith(SUFFIXES) and not text.startswith("{") and "\n" not in text:
        return [Layer.from_file(text)]
    if text and _is_file(text):
        return [Layer.from_file(text)]
    if not text or not (text.startswith("{") or ":" in text):
        raise UsageError("expected key=value, ~key, inline YAML or a config file", key="override", received=text)
    origin = f"override {text!r}"
    return [Layer(origin, as_tree(load_text(text, origin), origin))]


def parse_override(text: str) -> tuple[str, Any]:
    """Returns key and value of `key=value`, without the plus that adds a key.

    The value is read as a config file would read it: `1e-3` is a float, `null` and `None` are None, lists and
    mappings are written `[1, 2]` and `{a: 1}`, text may be quoted. Nothing after `=` is the empty text.

    Raises:
      UsageError: It is not of that form.
    """
    match = _PAIR.fullmatch(text)
    if match is None:
        raise UsageError("expected key=value, such as trainer.train_steps=100", key="override", received=text)
    value = match[3].strip()
    if not value:
        return match[2], ""
    if value[0] not in "[{\"'":
        return match[2], dialect.plain(value)  # not YAML: '*.tfrecord' and 'a #1' are ordinary text
    return match[2], load_text(value, f"override {text!r}")


def _pair_layer(pair: str) -> Layer:
    adds = pair.lstrip().startswith("+")
    return Layer(f"override {pair.strip()!r}", nested(*parse_override(pair)), edit="add" if adds else "set")


def split_pairs(text: str) -> Iterator[str]:
    """Yields the `key=value` pairs; commas in brackets, in quotes or before no further key do not split."""
    start = 0
    for position in _open_commas(text):
        if _NEXT_PAIR.match(text, position):
            yield text[start:position]
            start = position + 1
    yield text[start:].strip().rstrip(",")


def _open_commas(text: str) -> Iterator[int]:
    """Yields the positions of commas outside brackets and quotes."""
    closing: list[str] = []
    before = ""
    for position, char in enumerate(text):
        if closing and char == closing[-1]:
            closing.pop()
        elif closing and closing[-1] in "\"'":
            continue
        elif char in "\"'" and before in "=,[{:":  # elsewhere a quote is an apostrophe
            closing.append(char)
        elif char in _CLOSING and (closing or before in "=$"):
            closing.append(_CLOSING[char])
        elif char == "," and not closing:
            yield position
        before = before if char.isspace() else char


def _by_index(pairs: list[str]) -> list[str]:
    """Returns the pairs with the elements of each list in order: a list grows from its end, `b[2]=3,b[0]=1,b[1]=2`."""
    places: dict[str, list[int]] = {}
    keys = [_PAIR.match(pair)[2] for pair in pairs]  # type: ignore[index]
    for place, key in enumerate(keys):
        if "[" in key:
            places.setdefault(key.partition("[")[0], []).append(place)
    ordered = list(pairs)
    for mine in places.values():
        by_index = sorted(mine, key=lambda place: [int(index) for index in re.findall(r"\[(\d+)\]", keys[place])])
        for place, source in zip(mine, by_index, strict=True):
            ordered[place] = pairs[source]
    return ordered


def _is_file(text: str) -> bool:
    try:
        return Path(text).is_file()
    except (OSError, ValueError):
        return False


# -- groups: a directory of alternative files, composed by Hydra ---------------------------------------------------
#
#    conf/
#      main.yaml                 defaults: [{task/model: small}, _self_]
#      task/model/small.yaml     its values belong to task.model
#      task/model/large.yaml
#      experiment/wide.yaml      # @package _global_ at its top; may choose among the other groups
#
# Hydra's defaults list decides which files are used, in which order and where in the tree. The files are read here, as
# all config files are, so that every value keeps its line.

_CHOICE = re.compile(r"(?P<add>\+\+?)?(?P<group>\w[\w/-]*)(?P<package>@[\w.]+)?=(?P<option>[\w./-]+)")
_DROPPED_GROUP = re.compile(r"~(?P<group>\w[\w/-]*)")


def is_choice(text: str, directory: Path) -> bool:
    """Returns whether an override chooses in a group: `task/model=large`, `+experiment=wide`, `~opt`."""
    match = _CHOICE.fullmatch(text.strip()) or _DROPPED_GROUP.fullmatch(text.strip())
    return match is not None and (directory / match["group"]).is_dir()


def compose_groups(directory: Path, name: str | None, choices: Sequence[str]) -> list[Layer]:
    """Returns the values of the files that are used, in order.

    Args:
      directory: Where the groups are.
      name: The file that the composition starts from, without suffix; None: choices alone.
      choices: Overrides of which `is_choice` holds. `group=option` adds a group that no file chooses yet.

    Raises:
      UsageError: An unknown choice, or a defaults list that cannot be followed.
    """
    from hydra import initialize_config_dir
    from hydra.core.global_hydra import GlobalHydra
    from hydra.errors import HydraException

    logging.getLogger("hydra").setLevel(logging.ERROR)
    try:
        with initialize_config_dir(config_dir=str(directory.resolve()), version_base="1.3"):
            loader = GlobalHydra.instance().config_loader()
            overrides = list(_hydra_choices(loader, name, choices))
            return [_group_layer(directory, default) for default in _defaults_list(loader, name, overrides)]
    except (HydraException, OSError, ValueError) as error:
        if isinstance(error, UsageError):
            raise
        text = str(error).split("Config search path")[0]
        reason = "; ".join(line.strip() for line in text.splitlines() if line.strip()).replace(":;", ":")
        raise UsageError(reason, key=str(directory / f"{name}.yaml" if name else directory)) from None


def _hydra_choices(loader: Any, name: str | None, choices: Iterable[str]) -> Iterator[str]:
    """Yields the choices, with the plus that Hydra requires for a group in which no file chooses yet."""
    chosen = {default.override_key for default in _defaults_list(loader, name, [])} if name else set()
    for text in map(str.strip, choices):
        match = _CHOICE.fullmatch(text)
        if match is None:
            yield text
            continue
        options = loader.get_group_options(match["group"])
        if match["option"] not in options:
            reason = f"no option {match['option']!r} in group {match['group']!r}"
            raise UsageError(reason, key=text, remedy=nearest(match["option"], options))
        key = match["group"] + (match["package"] or "")
        yield f"{'' if key in chosen else '+'}{key}={match['option']}"


def _defaults_list(loader: Any, name: str | None, overrides: list[str]) -> list[Any]:
    from hydra.types import RunMode

    found = loader.compute_defaults_list(name, overrides, RunMode.RUN).defaults
    return [default for default in found if not (default.config_path or "hydra").startswith("hydra")]


def _group_layer(directory: Path, default: Any) -> Layer:
    """Returns a file's values at their place in the whole tree."""
    path = directory / default.config_path
    layer = Layer.from_file(path if path.suffix in (".yaml", ".yml") else path.with_name(f"{path.name}.yaml"))
    values = {key: value for key, value in layer.tree.items() if key != "defaults"}
    return dataclasses.replace(layer, tree=values).moved("", default.package or "")


# -- everything that one request names -----------------------------------------------------------------------------

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
            values += parse_overrides(text)
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
