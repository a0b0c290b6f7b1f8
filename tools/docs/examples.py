"""Shows the `Example:` of a docstring as code: a griffe extension, for the API reference."""

import re
import textwrap
from typing import Any

import griffe

EXAMPLE = re.compile(r"^Example:\n((?:[ ]+\S.*\n?|\n(?=[ ]))+)", re.MULTILINE)


class Examples(griffe.Extension):
    """Fences the indented lines below `Example:`, which griffe would take for prose."""

    def on_instance(self, *, obj: griffe.Object, **kwargs: Any) -> None:
        """Called by griffe for everything that it has read."""
        if obj.docstring:
            obj.docstring.value = EXAMPLE.sub(_fenced, obj.docstring.value)


def _fenced(found: re.Match[str]) -> str:
    return f"Example:\n\n```python\n{textwrap.dedent(found[1]).rstrip()}\n```\n\n"
