"""Restrictions: one-line rules between the values of a config, such as `"a.low < a.high"`."""

import operator
import re
from collections.abc import Callable
from typing import Any

from everstep.config.node import Node
from everstep.config.problem import Problem
from everstep.errors import nearest

_OPERATORS: dict[str, Callable[[Any, Any], bool]] = {
    "==": operator.eq,
    "!=": operator.ne,
    "<=": operator.le,
    ">=": operator.ge,
    "<": operator.lt,
    ">": operator.gt,
}
_SPLIT = re.compile(r"\s*(==|!=|<=|>=|<|>)\s*")


def broken(config: Node, rule: str) -> Problem | None:
    """Returns what is wrong with `rule` in this config, or None where it holds.

    A rule is a dotted key, one of `== != < <= > >=`, and another key, a number or `None`.
    """
    parts = _SPLIT.split(rule.strip())
    if len(parts) != 3 or not parts[0] or not parts[2]:
        form = f"'key < other', with one of {' '.join(_OPERATORS)}"
        return Problem("", f"restriction {rule!r} is not of the form {form}")
    try:
        left, right = _operand(config, parts[0]), _operand(config, parts[2])
        holds = _OPERATORS[parts[1]](left, right)
    except (LookupError, TypeError) as error:
        return Problem("", f"restriction {rule!r}: {error.args[0]}")
    return None if holds else Problem("", f"restriction {rule!r} is violated: {left!r} against {right!r}")


def _operand(config: Node, text: str) -> Any:
    if text == "None":
        return None
    try:
        return float(text)
    except ValueError:
        return _lookup(config, text)


def _lookup(config: Any, path: str) -> Any:
    for name in path.split("."):
        known = config._names() if isinstance(config, Node) else []
        if name not in known:
            raise LookupError(f"no key {path!r}; {nearest(name, known)}")
        config = getattr(config, name)
    return config
