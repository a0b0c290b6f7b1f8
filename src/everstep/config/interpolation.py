"""Interpolation: `${trainer.train_steps}` in a file or an override, resolved by OmegaConf.

A reference means the value at the end, after all layers: `decay_steps: ${trainer.train_steps}` follows
`trainer.train_steps=500` on the command line. `${oc.env:HOME}` reads the environment; so does `${secret:NAME}`, whose
value is never written anywhere: a stored configuration keeps the reference. `\\${` is plain text.
"""

import dataclasses
import os
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from everstep import redaction
from everstep.config import dialect
from everstep.config.layers import Layer, is_at_or_below, walk
from everstep.errors import Problem, UsageError, show


def resolve(layers: Sequence[Layer], constant: Mapping[str, Any]) -> list[Layer]:
    """Returns the layers with every interpolation in them resolved.

    Args:
      layers: The layers, in order.
      constant: The whole tree, with the layers' `constants` applied.

    Raises:
      UsageError: References to missing keys, or to themselves; each with key path and origin.
    """
    references = _surviving(layers)
    _check_grammar(references)
    resolved = _resolved(_context(constant, references), references)
    new = []
    for layer in layers:
        tree = _without_references(layer.tree)
        for path, value in resolved.items():
            if references[path] is layer:
                *parents, last = path.split(".")
                place = tree
                for parent in parents:
                    place = place.setdefault(parent, {})
                place[last] = value
        new.append(dataclasses.replace(layer, tree=tree))
    return new


def resolve_alone(layer: Layer) -> Layer:
    """Returns a layer with the references among its own values resolved."""
    return resolve([layer], _without_references(layer.tree))[0] if is_used([layer]) else layer


def constants(layers: Sequence[Layer]) -> list[Layer]:
    """Returns the layers without the values that hold interpolations."""
    return [dataclasses.replace(layer, tree=_without_references(layer.tree)) for layer in layers]


def is_used(layers: Sequence[Layer]) -> bool:
    """Returns whether any value in the layers is an interpolation."""
    return any(_has_reference(value) for layer in layers for _, value in walk(layer.tree))


def _has_reference(value: Any) -> bool:
    return any("${" in text for text in _texts(value))


def _texts(value: Any) -> Iterator[str]:
    """Yields every text in a value."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from _texts(item)
    elif isinstance(value, Mapping):
        for _, item in walk(value):
            yield from _texts(item)


def _without_references(tree: Mapping[str, Any]) -> dict[str, Any]:
    kept: dict[str, Any] = {}
    for key, value in tree.items():
        if isinstance(value, Mapping) and value:
            kept[key] = _without_references(value)
        elif not _has_reference(value):
            kept[key] = value
    return kept


def _surviving(layers: Sequence[Layer]) -> dict[str, Layer]:
    """Returns the key paths whose last value is an interpolation, with the layer that sets it."""
    found: dict[str, Layer] = {}
    for layer in layers:
        for path, value in walk(layer.tree):
            for other in [other for other in found if is_at_or_below(other, path)]:
                del found[other]
            if _has_reference(value):
                found[path] = layer
    return found


def _context(constant: Mapping[str, Any], references: Mapping[str, Layer]) -> Any:
    """Returns the whole tree as OmegaConf sees it: the constants, and the references in their places."""
    from omegaconf import OmegaConf

    OmegaConf.register_new_resolver("secret", _secret, replace=True)
    context = OmegaConf.create(_plain(constant), flags={"allow_objects": True})
    for path, layer in references.items():
        OmegaConf.update(context, path, dict(walk(layer.tree))[path], force_add=True)
    return context


def _plain(value: Any) -> Any:
    """Returns the constants as OmegaConf takes them: their text is meant as text, and it knows no sets."""
    if isinstance(value, Mapping):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple, set, frozenset)):
        return [_plain(item) for item in value]
    return dialect.escaped(value)


def _check_grammar(references: Mapping[str, Layer]) -> None:
    from omegaconf.errors import GrammarParseError
    from omegaconf.grammar_parser import parse

    problems = []
    for path, layer in references.items():
        for text in _texts(dict(walk(layer.tree))[path]):
            try:
                parse(text)
            except GrammarParseError as error:
                problems.append(_problem(path, text, f"not well-formed: {str(error).partition(chr(10))[0]}", layer))
    if problems:
        raise UsageError(problems)


def _resolved(context: Any, references: Mapping[str, Layer]) -> dict[str, Any]:
    from omegaconf import OmegaConf
    from omegaconf.errors import OmegaConfBaseException

    values, problems = {}, []
    for path, layer in references.items():
        try:
            value = OmegaConf.select(context, path, throw_on_resolution_failure=True)
            values[path] = OmegaConf.to_container(value, resolve=True) if OmegaConf.is_config(value) else value
        except (OmegaConfBaseException, UsageError) as error:
            reason = str(error).partition("\n")[0]
            problems.append(_problem(path, dict(walk(layer.tree))[path], reason, layer))
    if problems:
        raise UsageError(problems)
    return values


def _problem(path: str, value: Any, reason: str, layer: Layer) -> Problem:
    return Problem(path, f"cannot resolve {show(value)}: {reason}", layer.origin_of(path))


def _secret(name: str) -> str:
    """Resolves `${secret:NAME}`: the environment variable, which no output shows from here on."""
    value = os.environ.get(name)
    if value is None:
        raise UsageError(f"the environment variable {name!r} is not set")
    redaction.remember(value, reference=f"${{secret:{name}}}")
    return value
