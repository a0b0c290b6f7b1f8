"""YAML with a comment after every value."""

from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

from everstep.config.difference import in_line
from everstep.config.problem import join

_WIDEST = 60
"""Comments line up behind the longest line, those aside that are longer than this."""


class _Line(NamedTuple):
    text: str
    comment: str = ""


def annotated_yaml(tree: Mapping[str, Any], comment: Callable[[str, Any], str]) -> str:
    """Returns a tree as YAML, one value a line.

    Args:
      tree: The values. A list is one of them, on one line; one that holds sections is written out.
      comment: Called with the key path and each value.
    """
    lines = list(_lines(tree, "", comment))
    lengths = [len(line.text) for line in lines if line.comment]
    width = max((length for length in lengths if length <= _WIDEST), default=0)
    return "\n".join(f"{line.text:<{width}}  # {line.comment}" if line.comment else line.text for line in lines)


def _lines(tree: Mapping[str, Any], path: str, comment: Callable[[str, Any], str]) -> Iterator[_Line]:
    for key, value in tree.items():
        where = join(path, str(key))
        if isinstance(value, Mapping) and value:
            yield _Line(f"{in_line(key)}:")
            yield from _indented(_lines(value, where, comment))
        elif isinstance(value, (list, tuple)) and any(isinstance(item, Mapping) for item in value):
            yield _Line(f"{in_line(key)}:")
            for index, item in enumerate(value):
                yield from _indented(_item(item, f"{where}[{index}]", comment))
        else:
            yield _Line(f"{in_line(key)}: {in_line(value)}", comment(where, value))


def _item(value: Any, path: str, comment: Callable[[str, Any], str]) -> Iterator[_Line]:
    if isinstance(value, Mapping) and value:
        first, *rest = _lines(value, path, comment)
        yield _Line(f"- {first.text}", first.comment)
        yield from _indented(iter(rest))
    else:
        yield _Line(f"- {in_line(value)}", comment(path, value))


def _indented(lines: Iterator[_Line]) -> Iterator[_Line]:
    return (_Line(f"  {line.text}", line.comment) for line in lines)
