"""The docstring under each field of a config class: what an editor shows beside a key."""

import ast
import dataclasses
import functools
import inspect
import itertools


def field_docs(cls: type) -> dict[str, str]:
    """Returns the text under each field, by name.

        @dataclasses.dataclass
        class ModelConfig(Config):
            units: int = 32
            '''Width of the hidden layer.'''

        field_docs(ModelConfig)  # {"units": "Width of the hidden layer."}

    Python does not keep these texts, so they are read from the source. An inherited field has the text of the
    class that declares it. Fields without a text are left out, and all of those whose class has no source, as one
    that was typed into a console.
    """
    docs: dict[str, str] = {}
    for base in reversed(cls.__mro__):
        docs |= _own_docs(base)
    return docs


@functools.cache
def _own_docs(cls: type) -> dict[str, str]:
    if not dataclasses.is_dataclass(cls):
        return {}
    return dict(_texts(_body(cls)))


def _body(cls: type) -> list[ast.stmt]:
    """Returns the statements in a class, none where its source is not there or has become another one."""
    try:
        source = inspect.getsource(cls)
        # Dedenting would break on a long text that reaches the left margin.
        tree = ast.parse(f"if True:\n{source}" if source[:1].isspace() else source)
    except (OSError, TypeError, SyntaxError):
        return []
    classes = (node for node in ast.walk(tree) if isinstance(node, ast.ClassDef) and node.name == cls.__name__)
    found = next(classes, None)
    return found.body if found else []


def _texts(body: list[ast.stmt]) -> list[tuple[str, str]]:
    return [
        (field.target.id, inspect.cleandoc(below.value.value))
        for field, below in itertools.pairwise(body)
        if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name)
        if isinstance(below, ast.Expr) and isinstance(below.value, ast.Constant) and isinstance(below.value.value, str)
    ]
