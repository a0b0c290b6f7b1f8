"""Processes whose states differ are named before anything is saved."""

import numpy as np
import pytest

from everstep.errors import TrainingError
from everstep.gang import Gang, Member
from everstep.loop import same_state

pytestmark = pytest.mark.slow


def test_one_process_is_not_asked():
    same_state.require(Gang(), 3, {"x": object()})


@pytest.mark.parametrize("dtype", ["float32", "float16", "int64", "uint8", "bool"])
@pytest.mark.parametrize("size", [0, 1, 7, 64])
def test_every_bit_counts(dtype, size):
    array = np.arange(size).astype(dtype)
    assert same_state.checksum(array) == same_state.checksum(array.copy())
    for index in range(array.nbytes):
        other = array.copy()
        other.view(np.uint8)[index] ^= 1
        assert same_state.checksum(other) != same_state.checksum(array)


class Shown(Gang):
    """Processes with these values; the first one is this process."""

    members = [Member(rank, "here", 100 + rank) for rank in range(3)]

    def __init__(self, *states):
        self.size = len(states)
        self._found = [{key: same_state.checksum(array) for key, array in state.items()} for state in states]

    def gather(self, name, value):
        if name.startswith("the digest of"):
            return list(map(repr, self._found))
        assert value == self._found[0]
        return self._found


@pytest.mark.parametrize(("values", "wrong"), [((1, 1, 2), [2]), ((2, 1, 1), [0]), ((1, 2), [1]), ((1, 2, 3), [1, 2])])
def test_who_differs_from_most_is_named(values, wrong):
    states = [{"model/kernel": np.float32([value, 5]), "step": np.int64([7])} for value in values]
    with pytest.raises(TrainingError) as raised:
        same_state.require(Shown(*states), 40, states[0])
    who = ", ".join(f"rank {rank} (pid {100 + rank} on here)" for rank in wrong)
    assert f"the state of {who} differs from that of the others at step 40, in 1 variables" in str(raised.value)
    assert "'model/kernel'" in str(raised.value)
    same_state.require(Shown(states[0], states[0]), 40, states[0])
