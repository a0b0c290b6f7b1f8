"""Which texts are addresses."""

import re

_ADDRESS = re.compile(r"https?://[A-Za-z0-9][\w.:-]*(/[\w./~%?&=+,;:@!$*#-]*)?", re.ASCII)


def is_link(text: str) -> bool:
    """Returns whether a text is the address of a page and nothing else; other schemes are no links."""
    return _ADDRESS.fullmatch(text) is not None
