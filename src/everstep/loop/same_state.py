"""Do all processes of a run have the same state? They compare checksums before each save.

After every step the state must be the same on all of them, in every bit. A device that computes wrongly, or a step that
does something else on one process, would train on unnoticed, and the checkpoint of the first process would hide it.
"""

import collections
from collections.abc import Mapping

import numpy as np

from everstep.errors import TrainingError
from everstep.gang import Gang, different_values
from everstep.types import ArrayParts, OwnState


def require(gang: Gang, step: int, state: OwnState) -> None:
    """Requires that all processes have the same state; a single process is not asked.

    Args:
      gang: The processes.
      step: The step of the state.
      state: The state of this process, in host memory. Of an array that is divided, each has other parts: it is not
        compared.

    Raises:
      TrainingError: It differs; it names the processes that differ from most others, and a variable.
    """
    if gang.size == 1:
        return
    sums = {key: checksum(array) for key, array in state.items() if not isinstance(array, ArrayParts)}
    if not (all_sums := different_values(gang, "the state to save", sums)):
        return
    different = _minority(all_sums)
    usual = next(sums for rank, sums in enumerate(all_sums) if rank not in different)
    other = all_sums[different[0]]
    variables = [key for key in {**usual, **other} if usual.get(key) != other.get(key)]
    who = ", ".join(str(gang.members[rank]) for rank in different)
    raise TrainingError(
        f"the state of {who} differs from that of the others at step {step}, in {len(variables)} variables, such as "
        f"{variables[0]!r}; it is not saved",
        remedy="resume from the last checkpoint. If it happens again: a step that does not do the same on every "
        "process, or a device that computes wrongly",
    )


def checksum(array: np.ndarray) -> int:
    """Returns the sum of an array's bytes, taken as numbers of 64 bits: as fast as memory is read."""
    data = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
    whole = len(data) // 8 * 8
    rest = int.from_bytes(data[whole:].tobytes(), "little")
    return (int(data[:whole].view(np.uint64).sum(dtype=np.uint64)) + rest) % 2**64


def _minority(all_sums: list[Mapping[str, int]]) -> list[int]:
    """Returns the ranks whose checksums are not those of most; if none are more frequent, not those of rank 0."""
    texts = [repr(sorted(sums.items())) for sums in all_sums]
    usual = collections.Counter(texts).most_common(1)[0][0]  # of equally frequent ones, the first
    return [rank for rank, text in enumerate(texts) if text != usual]
