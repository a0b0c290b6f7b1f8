"""The names of a model's weights: the keys of Everstep's own checkpoints, and the paths that TensorFlow would use."""

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import keras

_NUMBER = re.compile(r"(.*?)(?:_(\d{1,9}))?", re.ASCII | re.DOTALL)
_CONTAINERS = {"_layers", "_operations", "_functional", "_metrics", "_inbound_nodes", "_outbound_nodes", "_tracker"}
_CONTAINERS |= {"_modules", "_torch_params"}


def weights(model: keras.Model) -> dict[str, keras.Variable]:
    """Returns the model's weights by the keys that checkpoints of a run have below `model/`.

    Seeds and metrics are no weights; a weight without elements has nothing to load.
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
    """Returns the names Keras would give, unnumbered, to the parts of a model."""
    parts = model._flatten_layers(include_self=True, recursive=True)
    return {snake_case(type(part).__name__) for part in parts} | {"seed_generator", "variable", "mean"}


def snake_case(name: str) -> str:
    """Returns a class's name as Keras spells it for an object."""
    name = re.sub(r"\W+", "", name)
    name = re.sub("(.)([A-Z][a-z]+)", r"\1_\2", name)
    return re.sub("([a-z])([A-Z])", r"\1_\2", name).lower()


def unnumbered(paths: Iterable[str], automatic: set[str]) -> dict[str, str]:
    """Returns paths with the numbers of automatic names replaced by their rank: `dense_4`, `dense_7` by `dense#0, #1`.

    How often a program built a layer before does not count then, only in which order it built these.
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
    """Yields parent, name and number of each part of a path; no number is 0, as Keras counts."""
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
