"""The one source of data randomness: everything drawn for an epoch is a function of (seed, epoch).

A counter-based generator keyed by both numbers needs no history: the order of epoch 1000 costs as much as
that of epoch 0, and a resumed run finds it from two integers. The order depends on the data alone, not on
backend, thread count or machine.
"""

import numpy as np

_WORD = 2**64


def generator(seed: int, epoch: int) -> np.random.Generator:
    """Returns the generator of one epoch: `np.random.Generator(np.random.Philox(key=[seed, epoch]))`.

    Example: `generator(seed, epoch).permutation(num_samples)` is the order of a shuffled epoch.
    Negative seeds count from the top of the 64-bit range.
    """
    key = np.array([seed % _WORD, epoch % _WORD], dtype=np.uint64)
    return np.random.Generator(np.random.Philox(key=key))
