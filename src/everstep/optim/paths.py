"""Which variables a list of regular expressions means."""

import re
from collections.abc import Iterable


def matches(patterns: Iterable[str], path: str) -> bool:
    """Tells whether one of the expressions is found in a variable's path, such as `encoder/layer_norm/bias`."""
    return any(re.search(pattern, path) for pattern in patterns)
