"""Gin bindings that name fields of config classes: `TrainerConfig.train_steps = 100`.

A class is named as gin names configurables, by the end of its dotted name: `TrainerConfig`,
`config.TrainerConfig`, `everstep.loop.config.TrainerConfig`; or as its package exports it,
`everstep.TrainerConfig`. A class stands for its subclasses too. The field is set wherever the experiment has such
a config; a scope says where: `train_data/DataConfig.global_batch_size = 8`.
"""

import copy
import dataclasses
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from everstep.config.base import Config
from everstep.config.gin.syntax import Binding, Macro, Reference
from everstep.config.layer import Layer
from everstep.config.node import Node
from everstep.config.problem import ConfigError, Problem, join
from everstep.errors import UsageError, nearest

_INDEX = re.compile(r"\[\d+\]")


def known_classes(base: type[Config] = Config) -> Iterator[type[Config]]:
    """Yields the config classes there are in this process, without the machinery they are made of."""
    for cls in base.__subclasses__():
        if _is_named(cls):
            yield cls
        yield from known_classes(cls)


def is_meant(selector: str, full_name: str) -> bool:
    """Tells whether a selector names the class with this full dotted name."""
    exported = f"{full_name.partition('.')[0]}.{full_name.rpartition('.')[2]}"
    return f".{full_name}".endswith(f".{selector}") or selector == exported


def full_name(cls: type) -> str:
    """Returns a class's dotted name, from its top-level package on."""
    return f"{cls.__module__}.{cls.__qualname__}"


def plain_value(value: Any, macros: Mapping[str, Any], above: tuple[str, ...] = ()) -> Any:
    """Returns a value with the macros in it replaced by what they stand for.

    Raises:
      UsageError: There is no such macro, it stands for itself, or there is a reference.
    """
    if isinstance(value, Reference):
        raise UsageError(f"received {value}, but a config holds plain values, no references")
    if isinstance(value, Macro):
        if value.name not in macros:
            raise UsageError(f"there is no macro {value}; {nearest(value.name, macros)}")
        if value.name in above:
            raise UsageError(f"the macro {value} stands for itself")
        return plain_value(macros[value.name], macros, (*above, value.name))
    if isinstance(value, Mapping):
        return {plain_value(k, macros, above): plain_value(v, macros, above) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return type(value)(plain_value(item, macros, above) for item in value)
    return value


def layers(config: Config, bindings: Iterable[Binding], macros: Mapping[str, Any]) -> list[Layer]:
    """Returns a layer for each binding, later ones winning; more of a scope wins over less of it, as in gin.

    Raises:
      ConfigError: Everything wrong in all of them: no such class or place in this config, no such field, values
        that are not plain.
    """
    nodes = list(_walk(config, ""))
    found, problems = [], []
    for binding in sorted(bindings, key=lambda one: one.scope.count("/") + bool(one.scope)):
        try:
            value = plain_value(binding.value, macros)
            paths = _paths(binding, nodes, value)
            found.append(Layer(binding.origin, _tree(paths, binding.argument, value)))
        except ConfigError as error:
            problems += [dataclasses.replace(problem, origin=binding.origin) for problem in error.problems]
        except UsageError as error:
            problems.append(Problem(binding.key, str(error), binding.origin))
    if problems:
        raise ConfigError(problems)
    return found


def _is_named(cls: type) -> bool:
    return not cls.__module__.startswith("everstep.config.")


def _walk(node: Config, path: str) -> Iterator[tuple[str, Config]]:
    yield path, node
    for below, child in node._children(node._names()):
        yield from _walk(child, join(path, below))


def _paths(binding: Binding, nodes: Sequence[tuple[str, Config]], value: Any) -> list[str]:
    """Returns the places of the configs that a binding sets a field of."""
    meant = [(path, node) for path, node in nodes if _classes(binding, node)]
    _require_one_class(binding, [node for _, node in meant])
    if not meant:
        names = {cls.__name__ for _, node in nodes for cls in type(node).__mro__ if _is_config(cls)}
        raise UsageError(f"this experiment has no {binding.selector}; {nearest(binding.selector, names)}")
    placed = [(path, node) for path, node in meant if _is_in_scope(path, binding.scope)]
    if not placed:
        places = [path.replace(".", "/") for path, _ in meant if path]
        raise UsageError(f"no {binding.selector} is at {binding.scope!r}; {nearest(binding.scope, places)}")
    having = [path for path, node in placed if binding.argument in node._names()]
    if not having:
        path, node = placed[0]
        raise ConfigError([node._unknown(binding.argument, value).under(path)])
    return having


def _classes(binding: Binding, node: Config) -> list[type]:
    """Returns the classes of a config, itself or a base, that a binding names."""
    selector = binding.context.full_name(binding.selector)
    return [cls for cls in type(node).__mro__ if _is_config(cls) and is_meant(selector, full_name(cls))]


def _is_config(cls: type) -> bool:
    return issubclass(cls, Node) and _is_named(cls)


def _require_one_class(binding: Binding, nodes: Sequence[Config]) -> None:
    """Refuses a name that stands for classes of which none is the base of the others."""
    named = {cls for node in nodes for cls in _classes(binding, node)}
    if named and not any(all(issubclass(cls, base) for cls in named) for base in named):
        full = " or ".join(sorted(map(full_name, named)))
        raise UsageError(f"{binding.selector} may be {full}; write more of its name")


def _is_in_scope(path: str, scope: str) -> bool:
    """Tells whether a place is the one that a scope names, or inside it."""
    inside, names = f"/{_INDEX.sub('', path).replace('.', '/')}/", f"/{scope}/"
    return not scope or names in inside


def _tree(paths: Sequence[str], name: str, value: Any) -> dict[str, Any]:
    tree: dict[str, Any] = {}
    for path in paths:
        node = tree
        for key in path.split(".") if path else ():
            node = node.setdefault(key, {})
        node[name] = copy.deepcopy(value)
    return tree
