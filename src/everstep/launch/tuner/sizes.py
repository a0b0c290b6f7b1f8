"""The search for the largest batch that fits: doubled until one does not, then between the last two."""

import dataclasses
from collections.abc import Callable, Iterator, Sequence


@dataclasses.dataclass(frozen=True)
class Tried:
    """How one batch size went.

    Attributes:
      size: Samples in a batch.
      fits: Whether memory sufficed.
      samples_per_second: How fast it was.
      peak_bytes: The most memory that was in use: on the device, or, where there is none, on the host.
      host_bytes: The most that was in use on the host.
      samples: How many samples there are at least; None where the data does not say.
      note: Why it does not fit.
    """

    size: int
    fits: bool
    samples_per_second: float | None = None
    peak_bytes: int | None = None
    host_bytes: int = 0
    samples: int | None = None
    note: str = ""


def search(start: int, most: int, attempt: Callable[[int], Tried]) -> Iterator[Tried]:
    """Yields one try after the other; the largest that fits is found to a sixteenth.

    Args:
      start: The first size to try.
      most: The largest.
      attempt: Tries one.
    """
    fits, fails, size = 0, 0, start
    while size:
        tried = attempt(size)
        yield tried
        if tried.fits:
            fits, most = size, min(most, tried.samples or most)
        else:
            fails = size
        size = _next(fits, fails, most)


def _next(fits: int, fails: int, most: int) -> int:
    """Returns the size to try next, 0 where there is none.

    Args:
      fits: The largest that fits, 0 if none has yet.
      fails: The smallest that does not, 0 if all have.
      most: The largest there may be.
    """
    if not fits:
        return fails // 2
    if not fails:
        return min(2 * fits, most) if fits < most else 0
    return (fits + fails) // 2 if fails - fits > 1 + fits // 16 else 0


def largest(tries: Sequence[Tried]) -> Tried | None:
    """Returns the largest size that fits, None if there is none."""
    return max((one for one in tries if one.fits), key=lambda one: one.size, default=None)


def fastest(tries: Sequence[Tried]) -> Tried | None:
    """Returns the size that takes most samples a second, None if none fits."""
    return max((one for one in tries if one.fits), key=lambda one: one.samples_per_second or 0.0, default=None)
