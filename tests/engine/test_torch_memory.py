"""On a CPU, PyTorch computes with the memory of a block, which is new memory that nothing else changes."""

import keras
import numpy as np
import pytest

from everstep.data import Block

if keras.backend.backend() != "torch":
    pytest.skip("about tensors of PyTorch", allow_module_level=True)

from everstep.engine.torch import TorchBackend

pytestmark = [pytest.mark.backend, pytest.mark.daily("torch")]


def placed(array):
    return TorchBackend().place(Block(array, len(array), []))


@pytest.mark.parametrize("dtype", ["float32", "uint8", "int64", "bool"])
def test_a_block_is_not_copied(dtype):
    array = np.ones((2, 3), dtype)
    assert placed(array).data_ptr() == array.ctypes.data


def test_what_keras_converts_is_copied():
    array = np.ones((2, 3), "float32")
    array.flags.writeable = False
    assert placed(array).data_ptr() != array.ctypes.data
    assert str(placed(np.ones((2, 3), "uint32")).dtype) == "torch.int64"
