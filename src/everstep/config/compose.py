"""Composing a config: its defaults, then layers of values over them, later ones winning.

A layer is a tree of values and the name of what it came from. Whatever can supply values only has to make layers
of them; `everstep.config.sources` does for files and overrides.
"""

import dataclasses
import functools
import logging
import os
from collections.abc import Iterable, Iterator, Sequence
from typing import TypeVar

from everstep.config import interpolation, sources
from everstep.config.alternatives import given_way
from everstep.config.base import Config
from everstep.config.dropping import drop
from everstep.config.layer import Layer, last_setter, walk
from everstep.config.merge import Plan
from everstep.config.problem import ConfigError, Problem, join

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
    found = sources.read(files, overrides, config_dir)
    refuse_rivals(config, found.overrides)
    return apply_layers(config, [*found.files, *found.overrides])


def apply_layers(config: AnyConfig, layers: Iterable[Layer]) -> AnyConfig:
    """Returns a copy of `config` with the layers applied in order, and the interpolations in them answered.

    Raises:
      UsageError: Everything wrong in all layers, each with key path, value and origin.
    """
    layers = list(layers)
    if not interpolation.is_used(layers):
        return _applied(config, layers)
    constant = _applied(config, interpolation.constants(layers))
    return _applied(config, interpolation.resolve(layers, constant.as_dict()))


def refuse_rivals(config: Config, overrides: Iterable[Layer]) -> None:
    """Refuses overrides of which two give alternatives a value, such as `trainer.epochs` and `trainer.train_steps`.

    They were given at once: which of them comes last means nothing. A config file among them is a layer of its own.

    Raises:
      UsageError: There are such; names both, and where the second came from.
    """
    given = {path: (value, layer) for layer in overrides if not layer.lines for path, value in walk(layer.tree)}
    problems = []
    for path, node in [("", config), *_below(config)]:
        for group in node._alternative_groups():
            paths = {name: join(path, name) for name in group}
            values = {name: given[where][0] for name, where in paths.items() if where in given}
            try:
                given_way([tuple(values)], values)
            except ConfigError as error:
                found = [problem.under(path) for problem in error.problems]
                problems += [dataclasses.replace(p, origin=given[p.path][1].origin_of(p.path)) for p in found]
    if problems:
        raise ConfigError(problems)


def _below(config: Config, path: str = "") -> Iterator[tuple[str, Config]]:
    """Yields the configs inside of one, with their key paths."""
    for name, child in config._children(config._names()):
        where = join(path, name)
        yield where, child
        yield from _below(child, where)


def validate(config: Config, layers: Sequence[Layer]) -> None:
    """Validates a config as `Config.validate` does; problems say which of the layers brought the value.

    Raises:
      UsageError: A line per problem.
    """
    try:
        config.validate()
    except ConfigError as error:
        raise ConfigError([_with_origin(problem, layers) for problem in error.problems]) from None


def _with_origin(problem: Problem, layers: Sequence[Layer]) -> Problem:
    setter = last_setter(layers, problem.path) if problem.path else None
    return dataclasses.replace(problem, origin=setter.origin_of(problem.path)) if setter else problem


def _applied(config: AnyConfig, layers: Sequence[Layer]) -> AnyConfig:
    new = config.replace()
    problems: list[Problem] = []
    for layer in layers:
        try:
            _lay(new, layer)
        except ConfigError as error:
            problems += [dataclasses.replace(p, origin=layer.origin_of(p.path)) for p in error.problems]
    if problems:
        raise ConfigError(problems)
    return new


def _lay(config: Config, layer: Layer) -> None:
    if layer.edit == "drop":
        for path, _ in walk(layer.tree):
            drop(config, path)
    elif layer.edit == "set_known":
        plan = Plan(is_strict=True, leave_out_unknown=True)
        plan.visit(config, layer.tree)
        plan.carry_out()
        if plan.left_out:
            _warn_left_out(layer.origin, ", ".join(plan.left_out))
    else:
        config.override(layer.tree, is_strict=layer.edit == "set")


@functools.cache
def _warn_left_out(origin: str, keys: str) -> None:
    """Names the keys; once, for the same layer may be laid over a config several times."""
    logger.warning("%s: left out, for the experiment has no such key: %s", origin, keys)
