"""Merging a tree of values into a config: plan every change first, then make all of them or none."""

import functools
import logging
import re
from collections.abc import Mapping
from typing import Any

from everstep.config.alternatives import given_way
from everstep.config.node import Node
from everstep.config.problem import ConfigError, Problem, join, show

logger = logging.getLogger(__name__)

_INDEXED = re.compile(r"(.+)\[(\d+)\]")


class Plan:
    """The changes a tree asks for, and everything wrong with it.

    Example:
      plan = Plan(is_strict=True)
      plan.visit(config, {"trainer": {"train_steps": 100}})
      plan.carry_out()
    """

    def __init__(self, is_strict: bool, leave_out_unknown: bool = False) -> None:
        self._is_strict = is_strict
        self._leave_out_unknown = leave_out_unknown
        self.left_out: list[str] = []
        self._edits: dict[tuple[int, str], tuple[Node, str, Any]] = {}
        self._replaced: list[tuple[str, int, int]] = []
        self.problems: list[Problem] = []

    def visit(self, node: Node, tree: Mapping[str, Any], path: str = "") -> None:
        """Plans the changes of one config and of those below it."""
        if node._locked:
            self.problems.append(Problem(path, "the config is locked; change a copy: config.replace(...)"))
            return
        for key, value in tree.items():
            try:
                self._visit_key(node, str(key), value, path)
            except ConfigError as error:
                self.problems += [problem.under(path) for problem in error.problems]
        self._clear_alternatives(node, tree, path)

    def carry_out(self) -> None:
        """Makes the planned changes.

        Raises:
          ConfigError: There were problems; nothing was changed.
        """
        if self.problems:
            raise ConfigError(self.problems)
        for node, name, value in self._edits.values():
            object.__setattr__(node, name, value)
        for lengths in self._replaced:
            _warn_replaced(*lengths)

    def _visit_key(self, node: Node, key: str, value: Any, path: str) -> None:
        indexed = _INDEXED.fullmatch(key)
        name = indexed[1] if indexed else key
        if node._passes_over(key, value):
            return
        if name not in node._names() and self._leave_out_unknown and not node._is_open():
            self.left_out.append(join(path, key))
        elif name not in node._names() and self._leave_out_unknown:
            self._edit(node, key, node._convert(key, value))
        elif name not in node._names():
            self._add(node, key, value)
        elif indexed:
            self._visit_item(node, name, int(indexed[2]), value, path)
        else:
            self._visit_value(node, name, value, path)

    def _add(self, node: Node, name: str, value: Any) -> None:
        converted = node._convert(name, value)
        if self._is_strict:
            raise ConfigError([node._unknown(name, value)])
        self._edit(node, name, converted)

    def _visit_value(self, node: Node, name: str, value: Any, path: str) -> None:
        held = self._held(node, name)
        where = join(path, name)
        if isinstance(held, Node) and isinstance(value, Mapping):
            self.visit(held, value, where)
        elif _pairs_up(held, value):
            for index, (item, tree) in enumerate(zip(held, value, strict=True)):
                self.visit(item, tree, f"{where}[{index}]")
        elif isinstance(held, Mapping) and isinstance(value, Mapping):
            self._visit_dict(node, name, value, path)
        else:
            if _are_configs(held, value) and value:
                self._replaced.append((where, len(held), len(value)))
            self._edit(node, name, node._convert(name, value))

    def _visit_dict(self, node: Node, name: str, value: Mapping[str, Any], path: str) -> None:
        """Plans the changes of a dict; the configs in it keep their class and what is not named."""
        held = self._held(node, name)
        inside = [key for key, tree in value.items() if isinstance(held.get(key), Node) and isinstance(tree, Mapping)]
        for key in inside:
            self.visit(held[key], value[key], join(join(path, name), str(key)))
        rest = {key: item for key, item in value.items() if key not in inside}
        if rest or not inside:
            self._edit(node, name, node._convert(name, _merged(held, rest)))

    def _visit_item(self, node: Node, name: str, index: int, value: Any, path: str) -> None:
        held = self._held(node, name)
        items = list(held) if isinstance(held, (list, tuple)) else []
        if index > len(items) or (held is not None and not isinstance(held, (list, tuple))):
            text = f"no such place to put {show(value)}: {join(path, name)} is {show(held)}"
            raise ConfigError([Problem(f"{name}[{index}]", text)])
        if index < len(items) and isinstance(items[index], Node) and isinstance(value, Mapping):
            self.visit(items[index], value, join(path, f"{name}[{index}]"))
            return
        items[index:] = [value, *items[index + 1 :]]
        self._edit(node, name, node._convert(name, items))

    def _clear_alternatives(self, node: Node, tree: Mapping[str, Any], path: str) -> None:
        try:
            for name in given_way(node._alternative_groups(), tree):
                self._edit(node, name, None)
        except ConfigError as error:
            self.problems += [problem.under(path) for problem in error.problems]

    def _held(self, node: Node, name: str) -> Any:
        """Returns the value as it will be after the changes planned so far."""
        planned = self._edits.get((id(node), name))
        return planned[2] if planned else getattr(node, name)

    def _edit(self, node: Node, name: str, value: Any) -> None:
        self._edits[id(node), name] = (node, name, value)


def _pairs_up(held: Any, value: Any) -> bool:
    """Tells whether two lists are merged element by element: configs held, as many mappings given."""
    return _are_configs(held, value) and len(held) == len(value)


def _are_configs(held: Any, value: Any) -> bool:
    """Tells whether configs are held in a list, and mappings given for them."""
    if not isinstance(held, (list, tuple)) or not isinstance(value, (list, tuple)) or not held:
        return False
    return all(isinstance(item, Node) for item in held) and all(isinstance(v, Mapping) for v in value)


@functools.cache
def _warn_replaced(path: str, held: int, given: int) -> None:
    """Says that a list was not merged; once, for the same values may be laid over the same config several times."""
    logger.warning(
        "%s: %d given for %d, so all are replaced and none is merged: what is not given has its class's default; "
        "%s[0] and so on change single ones",
        *(path, given, held, path),
    )


def _merged(held: Any, value: Any) -> Any:
    """Returns two dicts as one, the given values winning; anything else is simply replaced."""
    if not isinstance(held, Mapping) or not isinstance(value, Mapping):
        return value
    return {**held, **{key: _merged(held.get(key), item) for key, item in value.items()}}
