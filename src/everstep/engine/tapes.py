"""Finds the lines of a task that only work on another backend: a `tf.GradientTape` records TensorFlow alone."""

import ast
import inspect
import sys
import textwrap
import types
from collections.abc import Iterator
from typing import Any

_TAPE = "GradientTape"
_LIBRARIES = {
    "everstep",
    "keras",
    "tensorflow",
    "jax",
    "jaxlib",
    "torch",
    "numpy",
    "abc",
    "builtins",
    *sys.stdlib_module_names,
}


def tape_lines(task: Any) -> list[str]:
    """Returns the lines that open or ask a `GradientTape`, each as `file:line: code`.

    Looked through are the methods of the task's own classes, and the functions that those name, wherever they are
    written, libraries apart. What is called by way of an object, such as the method of a helper, is not found.
    """
    return [line for function in _functions(task) for line in _lines(function)]


def _functions(task: Any) -> list[types.FunctionType]:
    """Returns the functions of the task's classes, and those they name, and so on."""
    waiting, found = list(_methods(task)), {}
    while waiting:
        function = waiting.pop(0)
        if id(function.__code__) not in found:
            found[id(function.__code__)] = function
            waiting += _named_in(function)
    return list(found.values())


def _methods(task: Any) -> Iterator[types.FunctionType]:
    for cls in type(task).__mro__:
        if not _is_library(cls.__module__):
            yield from filter(None, map(_plain, vars(cls).values()))


def _named_in(function: types.FunctionType) -> Iterator[types.FunctionType]:
    """Yields the functions that a function names, by themselves or as `module.function`."""
    names = _names(function.__code__)
    values = [value for name, value in _scope(function) if name in names]
    modules = [value for value in values if inspect.ismodule(value) and not _is_library(value.__name__)]
    values += [vars(module)[name] for module in modules for name in names & vars(module).keys()]
    yield from (found for found in filter(None, map(_plain, values)) if not _is_library(found.__module__))


def _scope(function: types.FunctionType) -> list[tuple[str, Any]]:
    """Returns what the names in a function may stand for: of its module, and of the function it is written in."""
    around = inspect.getclosurevars(function).nonlocals if function.__closure__ else {}
    return [*function.__globals__.items(), *around.items()]


def _plain(value: Any) -> types.FunctionType | None:
    """Returns the function in a static or class method, a property, or what a decorator made of one; None if none."""
    if isinstance(value, staticmethod | classmethod):
        value = value.__func__
    elif isinstance(value, property):
        value = value.fget
    while (inner := inspect.getattr_static(value, "__wrapped__", None)) is not None:
        value = inner
    return value if inspect.isfunction(value) else None


def _names(code: types.CodeType) -> set[str]:
    """Returns the names that a piece of code uses, and those in the functions defined in it."""
    inner = [_names(constant) for constant in code.co_consts if inspect.iscode(constant)]
    return {*code.co_names, *code.co_freevars}.union(*inner)


def _is_library(module: str | None) -> bool:
    return (module or "builtins").partition(".")[0] in _LIBRARIES


def _lines(function: types.FunctionType) -> Iterator[str]:
    if _TAPE not in _names(function.__code__):
        return
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
    opened = {line for name, line in named if name == _TAPE}
    return opened | {line for name, line in named if name == "gradient" and opened}


def _name(node: ast.Attribute | ast.Name) -> str:
    return node.attr if isinstance(node, ast.Attribute) else node.id
