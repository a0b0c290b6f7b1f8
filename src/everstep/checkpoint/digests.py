"""One hash for a whole state: two runs with equal digests ended in the same bits."""

import hashlib
import json
import sys

import numpy as np

from everstep.types import StoredArray, StoredState

WEIGHTS = "model/"
"""The prefix of the keys of a model's variables."""


def digest(state: StoredState) -> str:
    """Returns the sha256 of a state: key, dtype, shape and bytes of every array, sorted by key; see `Digest`."""
    found = Digest()
    for key in sorted(state):
        found.add(key, state[key])
    return found.hex()


def weights_digest(state: StoredState) -> str:
    """Returns the digest of the model's variables alone, without the optimizer."""
    return digest({key: array for key, array in state.items() if key.startswith(WEIGHTS)})


class Digest:
    """The digest of a state whose arrays are added one by one, sorted by key.

    Bytes are taken in C order and little endian, so neither memory layout nor machine matters. Every array is
    preceded by the length of its header, and the header determines the length of its bytes: no two different states
    give the hash the same bytes.
    """

    def __init__(self) -> None:
        self._sha = hashlib.sha256()

    def add(self, key: str, array: np.ndarray | StoredArray) -> None:
        """Adds an array, whose key comes after those before it."""
        array = np.asarray(array)
        header = json.dumps([key, array.dtype.name, array.shape]).encode("utf-8")
        self._sha.update(len(header).to_bytes(8, "little") + header)
        self._sha.update(array_bytes(array))

    def hex(self) -> str:
        """Returns the sha256 of what was added."""
        return self._sha.hexdigest()


def array_bytes(array: np.ndarray) -> memoryview:
    """Returns the values of an array as bytes in C order, little endian; copies only if needed."""
    order = array.dtype.byteorder
    if order == ">" or (order == "=" and sys.byteorder == "big"):
        array = array.byteswap()
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8).data
