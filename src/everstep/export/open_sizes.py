"""The sizes that a model leaves open, as symbols in a program that JAX writes: `(batch, aa, 16)`.

JAX does not take two symbols to be equal. A model that adds two texts needs one symbol for both lengths.
"""

import itertools
import string
from collections.abc import Sequence

BATCH = "batch"
"""The symbol of every open first dimension."""

Shape = Sequence[int | None]


def own_symbols(shapes: Sequence[Shape]) -> list[str]:
    """Returns shapes in JAX's notation: each open size but the batch has a symbol of its own."""
    symbols = map("".join, itertools.product(string.ascii_lowercase, repeat=2))
    return [_spelled(shape, [next(symbols) for _ in shape]) for shape in shapes]


def shared_symbols(shapes: Sequence[Shape], sample: Sequence[Sequence[int]] | None = None) -> list[str]:
    """Returns shapes in JAX's notation: open sizes that are equal in a sample have the same symbol.

    Args:
      shapes: The shapes of the inputs; None for an open size.
      sample: The shapes of a sample; None to take all open sizes to be equal.
    """
    if sample is None:
        return [_spelled(shape, ["length"] * len(shape)) for shape in shapes]
    return [_spelled(shape, [f"length_{size}" for size in sizes]) for shape, sizes in zip(shapes, sample, strict=True)]


def _spelled(shape: Shape, symbols: Sequence[str]) -> str:
    """Returns a shape with these symbols where it is open, and `BATCH` for an open first dimension."""
    sizes = [
        str(size) if size is not None else symbol if axis else BATCH
        for axis, (size, symbol) in enumerate(zip(shape, symbols, strict=True))
    ]
    return f"({', '.join(sizes)})"
