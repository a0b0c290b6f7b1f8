"""Composing a config: its defaults, then layers of values over them, later ones winning."""

import dataclasses
import functools
import logging
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

from everstep.config import interpolation
from everstep.config.base import Config, drop, merge, reset_alternatives
from everstep.config.layers import Layer, walk, with_origins
from everstep.config.sources import read_sources
from everstep.errors import Problem, UsageError, join

logger = logging.getLogger(__name__)

AnyConfig = TypeVar("AnyConfig", bound=Config)


def apply(
    config: AnyConfig,
    files: Iterable[str | os.PathLike[str]] = (),
    overrides: Iterable[str] = (),
    config_dir: str | None = None,
) -> AnyConfig:
    """Returns a copy of `config` with the files in order and then the overrides applied.

    Args:
      config: The defaults; left as they are.
      files: Config files.
      overrides: Each one of `key=value`, `+key=value` to add a key to an open part, `~key` to drop one, several
        pairs with commas between (`a.b=1,c=[1,2]`), an inline YAML or JSON mapping, the path of a config file, or
        `group=option`.
      config_dir: A directory of config groups.

    Raises:
      UsageError: Everything wrong in all layers, each with key path, value and origin.
    """
    found = read_sources(files, overrides, config_dir)
    refuse_rivals(config, found.overrides)
    return apply_layers(config, [*found.files, *found.overrides])


def apply_layers(config: AnyConfig, layers: Iterable[Layer]) -> AnyConfig:
    """Returns a copy of `config` with the layers applied in order, and the interpolations in them resolved.

    Raises:
      UsageError: Everything wrong in all layers, each with key path, value and origin.
    """
    layers = list(layers)
    if not interpolation.is_used(layers):
        return _applied(config, layers)
    constant = _applied(config, interpolation.constants(layers))
    return _applied(config, interpolation.resolve(layers, constant.as_dict()))


def resolve_layers(layers: Iterable[Layer]) -> list[Layer]:
    """Returns layers with the interpolations in them resolved, whatever their keys.

    For files whose keys are names that users choose freely, such as a catalog of data; `merge_trees` merges them.

    Raises:
      UsageError: References to what is not there; each with key path and origin.
    """
    layers = list(layers)
    if not interpolation.is_used(layers):
        return layers
    return interpolation.resolve(layers, merge_trees(*(layer.tree for layer in interpolation.constants(layers))))


def merge_trees(*trees: Mapping[str, Any]) -> dict[str, Any]:
    """Returns trees of plain values as one, key by key; values of later trees win."""
    whole: dict[str, Any] = {}
    for tree in trees:
        for key, value in tree.items():
            held = whole.get(key)
            both = isinstance(held, Mapping) and isinstance(value, Mapping)
            whole[key] = merge_trees(held, value) if both else value  # type: ignore[arg-type]
    return whole


def refuse_rivals(config: Config, overrides: Iterable[Layer]) -> None:
    """Refuses overrides of which two give alternatives a value, such as `trainer.epochs` and `trainer.train_steps`.

    They were given at once: which of them comes last means nothing. A config file among them is a layer of its own.

    Raises:
      UsageError: Names both, and the origin of the second.
    """
    given = {path: (value, layer) for layer in overrides if not layer.lines for path, value in walk(layer.tree)}
    problems = []
    for path, node in [("", config), *_below(config)]:
        for group in node._alternative_groups():
            paths = {name: join(path, name) for name in group}
            values = {name: given[where][0] for name, where in paths.items() if where in given}
            try:
                reset_alternatives([tuple(values)], values)
            except UsageError as error:
                found = [problem.under(path) for problem in error.problems]
                problems += [dataclasses.replace(p, origin=given[p.key][1].origin_of(p.key)) for p in found]
    if problems:
        raise UsageError(problems)


def _below(config: Config, path: str = "") -> Iterator[tuple[str, Config]]:
    """Yields the configs inside of one, with their key paths."""
    for name, child in config._children(config._names()):
        where = join(path, name)
        yield where, child
        yield from _below(child, where)


def validate(config: Config, layers: Sequence[Layer]) -> None:
    """Validates a config as `Config.validate` does; problems name the layer that set the value.

    Raises:
      UsageError: One problem for each rule that does not hold.
    """
    try:
        config.validate()
    except UsageError as error:
        raise UsageError(with_origins(error.problems, layers)) from None


def _applied(config: AnyConfig, layers: Sequence[Layer]) -> AnyConfig:
    new = config.replace()
    problems: list[Problem] = []
    for layer in layers:
        try:
            if layer.edit == "drop":
                for path, _ in walk(layer.tree):
                    drop(new, path)
            elif skipped := merge(new, layer.tree, layer.edit != "add", skip_unknown=layer.edit == "set_known"):
                _warn_skipped(layer.origin, ", ".join(skipped))
        except UsageError as error:
            problems += layer.located(error.problems)
    if problems:
        raise UsageError(problems)
    return new


@functools.cache
def _warn_skipped(origin: str, keys: str) -> None:
    """Names the keys; once, because the same layer may be applied several times."""
    logger.warning("%s: skipped keys that the experiment does not have: %s", origin, keys)
