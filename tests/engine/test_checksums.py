"""The checksums that a GPU computes of frozen weights, here on the CPU: every changed bit and every swap shows."""

import keras
import numpy as np
import pytest
from keras import ops

pytestmark = [
    pytest.mark.backend,
    pytest.mark.gpu,
    pytest.mark.skipif(keras.backend.backend() == "tensorflow", reason="by the host"),
]


def checksum(array, dtype):
    tensor = ops.convert_to_tensor(array, dtype)
    if keras.backend.backend() == "jax":
        from everstep.engine.jax import _checksum
    else:
        from everstep.engine.torch import _checksum
    return int(_checksum(tensor))


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16", "int8", "uint8", "int32", "bool"])
def test_changes_and_swaps_show(dtype):
    array = np.random.default_rng(0).integers(0, 100, (3, 5, 7)) % (2 if dtype == "bool" else 100)
    before = checksum(array, dtype)
    assert checksum(array.copy(), dtype) == before
    seen = {before}
    for place in np.ndindex(array.shape):
        changed = array.copy()
        changed[place] = 1 - changed[place] if dtype == "bool" else changed[place] + 1
        assert checksum(changed, dtype) != before, place
    for axis in range(3):
        seen.add(checksum(np.flip(array, axis), dtype))
    assert len(seen) == 4


def test_parts_of_any_length_are_added(monkeypatch):
    if keras.backend.backend() != "torch":
        pytest.skip("only PyTorch adds part by part")
    array = np.random.default_rng(0).normal(size=1000)
    whole = checksum(array, "float32")
    monkeypatch.setattr("everstep.engine.torch.CHECKSUM_NUMBERS", 7)
    assert checksum(array, "float32") == whole


def test_scalars_and_arrays_without_elements():
    assert checksum(3.0, "float32") != checksum(4.0, "float32")
    assert checksum(np.zeros((0, 4)), "float32") == 0
