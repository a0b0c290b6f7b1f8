"""Finds the lines of a task that only work on another backend: a `tf.GradientTape` records TensorFlow alone."""

import ast
import inspect
import textwrap
from collections.abc import Iterator
from typing import Any


def tape_lines(task: Any) -> list[str]:
    """Returns the lines in a task's own methods that open or ask a `GradientTape`, each as `file:line: code`."""
    return [line for method in _methods(task) for line in _lines(method)]


def _methods(task: Any) -> Iterator[Any]:
    """Yields the functions of the task's class and of its bases, without everstep's own."""
    for cls in type(task).__mro__:
        if cls.__module__.partition(".")[0] not in ("everstep", "builtins", "abc"):
            yield from (value for value in vars(cls).values() if inspect.isfunction(value))


def _lines(function: Any) -> Iterator[str]:
    try:
        source, first = inspect.getsourcelines(function)
        tree = ast.parse(textwrap.dedent("".join(source)))
    except (OSError, SyntaxError, TypeError):  # typed into a prompt, or made by another program
        return
    for number in sorted(_tape_numbers(tree)):
        yield f"{inspect.getsourcefile(function)}:{first + number - 1}: {source[number - 1].strip()}"


def _tape_numbers(tree: ast.AST) -> set[int]:
    """Returns the numbers of the lines that name `GradientTape`, or take a gradient from what was opened as one."""
    named = [(_name(node), node.lineno) for node in ast.walk(tree) if isinstance(node, ast.Attribute | ast.Name)]
    opened = {line for name, line in named if name == "GradientTape"}
    return opened | {line for name, line in named if name == "gradient" and opened}


def _name(node: ast.Attribute | ast.Name) -> str:
    return node.attr if isinstance(node, ast.Attribute) else node.id
