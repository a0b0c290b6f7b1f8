"""Pairs the arrays of a file with the weights of a model: by name, and only if the shapes are equal.

A format may name a weight in several ways (by the object that holds it, by its own name). Each way is a `Naming`. The
one that matches the most weights is used for all of them: mixing two could load one weight twice. Names that users gave
are never contradicted: a naming that only counts layers may match many weights, each of them wrongly.
"""

import contextlib
import dataclasses
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import keras

from everstep.keras_internals import to_snake_case

_NUMBER = re.compile(r"(.*?)(?:_(\d{1,9}))?", re.ASCII | re.DOTALL)
_CONTAINERS = {"_layers", "_operations", "_functional", "_metrics", "_inbound_nodes", "_outbound_nodes", "_tracker"}
_CONTAINERS |= {"_modules", "_torch_params"}
_SHOWN = 5

Shape = tuple[int, ...]


@dataclasses.dataclass(frozen=True)
class Mismatch:
    """A weight that the file has in another shape.

    Attributes:
      name: Its name in the model.
      here: Its shape in the model.
      there: Its shape in the file.
    """

    name: str
    here: tuple[int, ...]
    there: tuple[int, ...]

    def __str__(self) -> str:
        return f"{self.name} (here {self.here}, there {self.there})"


@dataclasses.dataclass(frozen=True)
class Report:
    """Which weights were loaded, and which were not.

    Attributes:
      path: The file or directory that was read.
      kind: The kind of the file, in words.
      matched: The weights of the model that were loaded.
      missing: The weights that the file lacks; they keep their initial values.
      mismatched: The weights that the file has in another shape; they keep their initial values.
      unexpected: The arrays of the file that the model does not have.
    """

    path: str
    kind: str
    matched: tuple[str, ...]
    missing: tuple[str, ...] = ()
    mismatched: tuple[Mismatch, ...] = ()
    unexpected: tuple[str, ...] = ()

    @property
    def is_complete(self) -> bool:
        """Whether every weight of the model was loaded."""
        return not self.missing and not self.mismatched

    def lines(self) -> list[str]:
        """Returns the report as text: the number of weights in each group, and the first names."""
        total = len(self.matched) + len(self.missing) + len(self.mismatched)
        lines = [f"{len(self.matched)} of the model's {total} weights come from {self.kind} {self.path}"]
        if self.missing:
            lines.append(f"missing there, initialized here: {_listed(self.missing)}")
        if self.mismatched:
            lines.append(f"of another shape, initialized here: {_listed(self.mismatched)}")
        if self.unexpected:
            lines.append(f"not used from there: {_listed(self.unexpected)}")
        return lines

    def as_dict(self) -> dict[str, Any]:
        """Returns the report as plain values, for `run.json`."""
        return {
            "path": self.path,
            "kind": self.kind,
            "matched": list(self.matched),
            "missing": list(self.missing),
            "mismatched": [
                {"name": one.name, "here": list(one.here), "there": list(one.there)} for one in self.mismatched
            ],
            "unexpected": list(self.unexpected),
        }


def _listed(names: tuple[Any, ...]) -> str:
    more = f", … ({len(names)} in all)" if len(names) > _SHOWN else ""
    return ", ".join(map(str, names[:_SHOWN])) + more


@dataclasses.dataclass
class Plan:
    """A match that can be applied while the file is open; `with` closes the file.

    Attributes:
      report: The weights that `apply` loads.
      apply: Loads the weights; reads all of them first, so that an unreadable file changes nothing.
      open_files: The open files, closed at the end.
    """

    report: Report
    apply: Callable[[], None]
    open_files: contextlib.ExitStack = dataclasses.field(default_factory=contextlib.ExitStack)

    def __enter__(self) -> "Plan":
        return self

    def __exit__(self, *error: Any) -> None:
        self.open_files.close()


@dataclasses.dataclass(frozen=True)
class Naming:
    """One way to name the same weights on both sides.

    Attributes:
      here: The common name of each weight of the model, by its key.
      there: The common name of each array of the file, by its key.
      whole: Whether it is used only if all weights match, because the names alone are weak evidence.
      called_here: The names that users gave to the weights of the model, by key, if those above are not names.
      called_there: The same for the arrays of the file.
    """

    here: Mapping[str, str]
    there: Mapping[str, str]
    whole: bool = False
    called_here: Mapping[str, str] = dataclasses.field(default_factory=dict)
    called_there: Mapping[str, str] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True)
class Match:
    """The pairs of weights and arrays.

    Attributes:
      pairs: The key in the file, by the key in the model.
      missing: Keys of the model without an array.
      mismatched: Keys of the model whose array has another shape.
      unexpected: Keys of the file that the model does not have.
    """

    pairs: Mapping[str, str]
    missing: tuple[str, ...]
    mismatched: tuple[Mismatch, ...]
    unexpected: tuple[str, ...]


def best(namings: Iterable[Naming], here: Mapping[str, Shape], there: Mapping[str, Shape]) -> Match:
    """Returns the match with the most weights; among equal ones that with the fewest renamed weights, then the first.

    Args:
      namings: The namings to try, the most reliable first; at least one.
      here: The shapes of the model's weights, by key.
      there: The shapes of the file's arrays, by key.
    """
    matches = [(naming, _match(naming, here, there)) for naming in namings]
    usable = [(n, m) for n, m in matches if not (n.whole and len(m.pairs) < len(here)) and not _contradicts(n, m)]
    return max(usable, key=lambda found: (len(found[1].pairs), -len(_renamed(*found))))[1]


def _renamed(naming: Naming, match: Match) -> list[tuple[str | None, str | None]]:
    """Returns the names on both sides of the pairs whose names differ."""
    called = [(naming.called_here.get(key), naming.called_there.get(other)) for key, other in match.pairs.items()]
    return [(ours, theirs) for ours, theirs in called if ours != theirs]


def _contradicts(naming: Naming, match: Match) -> bool:
    """Returns whether a match pairs a weight with another array although the file has one of the same name."""
    ours, theirs = (set(_unique(names, names)) for names in (naming.called_here, naming.called_there))
    common = ours & theirs
    return any(name in common for pair in _renamed(naming, match) for name in pair)


def _match(naming: Naming, here: Mapping[str, Shape], there: Mapping[str, Shape]) -> Match:
    wanted, offered = _unique(naming.here, here), _unique(naming.there, there)
    common = {key: offered[name] for name, key in wanted.items() if name in offered}
    pairs = {key: other for key, other in common.items() if here[key] == there[other]}
    return Match(
        pairs=pairs,
        missing=tuple(key for key in here if key not in common),
        mismatched=tuple(Mismatch(k, here[k], there[o]) for k, o in common.items() if k not in pairs),
        unexpected=tuple(key for key in there if key not in set(common.values())),
    )


def _unique(names: Mapping[str, str], keys: Iterable[str]) -> dict[str, str]:
    """Returns keys by name, without ambiguous names that several keys share."""
    named = [(names[key], key) for key in keys if key in names]
    counts = Counter(name for name, _ in named)
    return {name: key for name, key in named if counts[name] == 1}


def report_of(match: Match, path: Any, shown: Mapping[str, str] | None = None) -> Report:
    """Returns the report of a match.

    Args:
      match: The match.
      path: The file or directory of the arrays.
      shown: The names of weights in the report, by key; by default the keys themselves.
    """
    shown = shown or {}
    return Report(
        path=str(path),
        kind="",
        matched=tuple(shown.get(key, key) for key in match.pairs),
        missing=tuple(shown.get(key, key) for key in match.missing),
        mismatched=tuple(dataclasses.replace(one, name=shown.get(one.name, one.name)) for one in match.mismatched),
        unexpected=match.unexpected,
    )


# -- names of weights: the keys of a run's checkpoints, and the paths that TensorFlow would use -----------------------


def model_weights(model: keras.Model) -> dict[str, keras.Variable]:
    """Returns the weights of a model by their keys below `model/` in checkpoints of a run.

    Seeds and metrics are not weights; a weight without elements has nothing to load.
    """
    wanted = {id(weight) for weight in model.weights if 0 not in weight.shape}
    automatic, numbers = automatic_names(model), dict[tuple[str, str], dict[str, str]]()
    keyed = {}
    for variable in model.variables:
        key = _renumbered(_below(model, variable), automatic, numbers)
        if id(variable) in wanted:
            keyed[key] = variable
    return keyed


def automatic_names(model: keras.Model) -> set[str]:
    """Returns the names, without numbers, that Keras gives to the parts of a model by default."""
    parts = model._flatten_layers(include_self=True, recursive=True)
    return {to_snake_case(type(part).__name__) for part in parts} | {"seed_generator", "variable", "mean"}


def unnumbered(paths: Iterable[str], automatic: set[str]) -> dict[str, str]:
    """Returns paths with the numbers of automatic names replaced by their rank: `dense_4`, `dense_7` by `dense#0, #1`.

    The result depends only on the order in which these layers were built, not on those built before.
    """
    paths = list(paths)
    seen: dict[tuple[str, str], set[int]] = {}
    for path in paths:
        for parent, base, number in _numbered(path):
            seen.setdefault((parent, base), set()).add(number)
    return {path: "/".join(_ranked(path, automatic, seen)) for path in paths}


def object_paths(model: keras.Model) -> dict[int, str]:
    """Returns the path from the model to each of its variables, as TensorFlow tracks objects, by the variable's id.

    Attributes count without leading underscores; the layers of a Sequential or functional model are
    `layer_with_weights-0`, `-1`, ….
    """
    found: dict[int, str] = {}
    _walk(model, "", found, set())
    return found


def _below(model: keras.Model, variable: keras.Variable) -> list[str]:
    parts = variable.path.split("/")
    return parts[1:] if len(parts) > 1 and parts[0] == model.name else parts


def _renumbered(parts: list[str], automatic: set[str], numbers: dict[tuple[str, str], dict[str, str]]) -> str:
    """Replaces the numbers of automatic names by their order of appearance below the same parent."""
    done = ""
    for part in parts:
        base = re.sub(r"_\d+$", "", part)
        if base in automatic:
            seen = numbers.setdefault((done, base), {})
            part = seen.setdefault(part, base if not seen else f"{base}_{len(seen)}")
        done = f"{done}/{part}" if done else part
    return done


def _numbered(path: str) -> Iterator[tuple[str, str, int]]:
    """Yields parent, name and number of each part of a path; a part without a number has 0, as Keras counts."""
    parent = ""
    for part in path.split("/"):
        if found := _NUMBER.fullmatch(part):
            yield parent, found[1], int(found[2] or 0)
        parent = f"{parent}/{part}"


def _ranked(path: str, automatic: set[str], seen: Mapping[tuple[str, str], set[int]]) -> Iterator[str]:
    for part, (parent, base, number) in zip(path.split("/"), _numbered(path), strict=True):
        yield f"{base}#{sorted(seen[parent, base]).index(number)}" if base in automatic else part


def _walk(layer: Any, prefix: str, found: dict[int, str], visited: set[int]) -> None:
    if id(layer) in visited:
        return
    visited.add(id(layer))
    if isinstance(layer, keras.Sequential) or hasattr(layer, "operations"):  # the latter is a functional model
        with_weights = [part for part in layer.layers if part.weights]
        for rank, part in enumerate(with_weights):
            _walk(part, f"{prefix}layer_with_weights-{rank}/", found, visited)
    for variable in (*layer._trainable_variables, *layer._non_trainable_variables):
        found.setdefault(id(variable), prefix + variable.name)
    parts = vars(layer) | vars(layer).get("_modules", {})  # where PyTorch keeps those attributes that are layers
    for name, value in sorted(parts.items(), key=lambda item: (item[0].startswith("_"), item[0])):
        if name not in _CONTAINERS:
            _walk_value(value, f"{prefix}{name.lstrip('_')}/", found, visited)


def _walk_value(value: Any, prefix: str, found: dict[int, str], visited: set[int]) -> None:
    if isinstance(value, keras.Layer):
        _walk(value, prefix, found, visited)
    elif isinstance(value, list | tuple):
        for index, item in enumerate(value):
            _walk_value(item, f"{prefix}{index}/", found, visited)
    elif isinstance(value, dict):
        for name, item in value.items():
            _walk_value(item, f"{prefix}{name}/", found, visited)
