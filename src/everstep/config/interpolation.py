"""Interpolation: `${trainer.train_steps}` in a file or an override, answered by OmegaConf.

A reference means the value at the end, after all layers: `decay_steps: ${trainer.train_steps}` follows
`trainer.train_steps=500` on the command line. `${oc.env:HOME}` reads the environment; `${secret:NAME}` too, and
what it read is never written anywhere: a stored configuration keeps the reference. `\\${` is plain text.
"""

import dataclasses
import os
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from everstep import redaction
from everstep.config import dialect
from everstep.config.layer import Layer, walk
from everstep.config.problem import ConfigError, Problem, show
from everstep.errors import UsageError


def resolve(layers: Sequence[Layer], constant: Mapping[str, Any]) -> list[Layer]:
    """Returns the layers with every interpolation in them answered.

    Args:
      layers: They, in order.
      constant: The whole tree, with the layers' `constants` applied.

    Raises:
      ConfigError: References to what is not there, or to themselves; each with key path and origin.
    """
    asked = _surviving(layers)
    _require_grammar(asked)
    answers = _answers(_context(constant, asked), asked)
    return [_answered(layer, {path: answers[path] for path, by in asked.items() if by is layer}) for layer in layers]


def alone(layer: Layer) -> Layer:
    """Returns a layer with the references among its own values answered."""
    return resolve([layer], _without(layer.tree))[0] if is_used([layer]) else layer


def constants(layers: Sequence[Layer]) -> list[Layer]:
    """Returns the layers without the values that hold interpolations."""
    return [dataclasses.replace(layer, tree=_without(layer.tree)) for layer in layers]


def is_used(layers: Sequence[Layer]) -> bool:
    """Tells whether any value in the layers is an interpolation."""
    return any(_holds(value) for layer in layers for _, value in walk(layer.tree))


def _holds(value: Any) -> bool:
    return any("${" in text for text in _flat(value))


def _without(tree: Mapping[str, Any]) -> dict[str, Any]:
    kept: dict[str, Any] = {}
    for key, value in tree.items():
        if isinstance(value, Mapping) and value:
            kept[key] = _without(value)
        elif not _holds(value):
            kept[key] = value
    return kept


def _surviving(layers: Sequence[Layer]) -> dict[str, Layer]:
    """Returns the key paths whose last word is an interpolation, with the layer that says it."""
    asked: dict[str, Layer] = {}
    for layer in layers:
        for path, value in walk(layer.tree):
            for other in [other for other in asked if _is_at_or_below(other, path)]:
                del asked[other]
            if _holds(value):
                asked[path] = layer
    return asked


def _is_at_or_below(path: str, top: str) -> bool:
    return path == top or path.startswith((f"{top}.", f"{top}["))


def _context(constant: Mapping[str, Any], asked: Mapping[str, Layer]) -> Any:
    """Returns the whole tree as OmegaConf sees it: the constants, and the questions in their places."""
    from omegaconf import OmegaConf

    OmegaConf.register_new_resolver("secret", _secret, replace=True)
    context = OmegaConf.create(_known(constant), flags={"allow_objects": True})
    for path, layer in asked.items():
        OmegaConf.update(context, path, dict(walk(layer.tree))[path], force_add=True)
    return context


def _known(value: Any) -> Any:
    """Returns the constants as OmegaConf takes them: what is text there is meant as text, and it knows no sets."""
    if isinstance(value, Mapping):
        return {key: _known(item) for key, item in value.items()}
    if isinstance(value, (list, tuple, set, frozenset)):
        return [_known(item) for item in value]
    return dialect.escaped(value)


def _require_grammar(asked: Mapping[str, Layer]) -> None:
    from omegaconf.errors import GrammarParseError
    from omegaconf.grammar_parser import parse

    problems = []
    for path, text in _texts(asked):
        try:
            parse(text)
        except GrammarParseError as error:
            problems.append(_problem(path, text, f"not well-formed: {_first_line(error)}", asked[path]))
    if problems:
        raise ConfigError(problems)


def _texts(asked: Mapping[str, Layer]) -> Iterator[tuple[str, str]]:
    """Yields every text that may hold a reference, with the key path of the value it is in."""
    for path, layer in asked.items():
        for text in _flat(dict(walk(layer.tree))[path]):
            yield path, text


def _flat(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from _flat(item)
    elif isinstance(value, Mapping):
        for _, item in walk(value):
            yield from _flat(item)


def _answers(context: Any, asked: Mapping[str, Layer]) -> dict[str, Any]:
    answers, problems = {}, []
    for path, layer in asked.items():
        try:
            answers[path] = _answer(context, path)
        except UsageError as error:
            problems.append(_problem(path, dict(walk(layer.tree))[path], str(error), layer))
    if problems:
        raise ConfigError(problems)
    return answers


def _problem(path: str, value: Any, reason: str, layer: Layer) -> Problem:
    return Problem(path, f"cannot resolve {show(value)}: {reason}", layer.origin_of(path))


def _answer(context: Any, path: str) -> Any:
    from omegaconf import OmegaConf
    from omegaconf.errors import OmegaConfBaseException

    try:
        value = OmegaConf.select(context, path, throw_on_resolution_failure=True)
        return OmegaConf.to_container(value, resolve=True) if OmegaConf.is_config(value) else value
    except OmegaConfBaseException as error:
        raise UsageError(_first_line(error)) from None


def _first_line(error: Exception) -> str:
    return str(error).partition("\n")[0]


def _answered(layer: Layer, answers: Mapping[str, Any]) -> Layer:
    tree = _without(layer.tree)
    for path, answer in answers.items():
        _put(tree, path.split("."), answer)
    return dataclasses.replace(layer, tree=tree)


def _put(tree: dict[str, Any], parts: Sequence[str], value: Any) -> None:
    for part in parts[:-1]:
        tree = tree.setdefault(part, {})
    tree[parts[-1]] = value


def _secret(name: str) -> str:
    """Answers `${secret:NAME}`: the environment variable, which no output will show from here on."""
    value = os.environ.get(name)
    if value is None:
        raise UsageError(f"the environment variable {name!r} is not set")
    redaction.remember(value, reference=f"${{secret:{name}}}")
    return value
