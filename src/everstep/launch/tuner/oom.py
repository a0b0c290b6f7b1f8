"""Whether an error says that memory did not suffice, in the words of whoever ran out of it."""

import re
from collections.abc import Iterator

_TYPES = ("ResourceExhaustedError", "OutOfMemoryError")
_WORDS = re.compile(
    r"RESOURCE_EXHAUSTED|out of memory|OOM when allocating|(can't|cannot|failed to|unable to) allocate|bad_alloc", re.I
)


def is_out_of_memory(error: BaseException) -> bool:
    """Returns whether an error, or one that it came from, says that memory did not suffice, on a device or the host."""
    return any(
        isinstance(one, MemoryError) or type(one).__name__ in _TYPES or says_out_of_memory(str(one))
        for one in _chain(error)
    )


def says_out_of_memory(text: str) -> bool:
    """Returns whether a message says that memory did not suffice."""
    return _WORDS.search(text) is not None


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        yield error
        error = error.__cause__ or error.__context__
