"""On a CPU, PyTorch computes with the memory of a block, which is new memory that nothing else changes."""

import keras
import numpy as np
import pytest

from everstep.checkpoint import digest
from everstep.data import Block
from everstep.testing import models
from everstep.testing.tasks import Regression, running, seeded

if keras.backend.backend() != "torch":
    pytest.skip("about tensors of PyTorch", allow_module_level=True)

import torch

from everstep.engine.backend import create_engine
from everstep.engine.state import canonical
from everstep.engine.torch import TorchBackend, _pinned
from everstep.engine.torch import _view as backend_view

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


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16", "float64", "int32", "int8", "uint8", "bool"])
def test_copies_of_a_gpu_have_the_stored_form_and_reuse_their_memory(dtype, monkeypatch):
    """Here without a GPU, for which alone memory can be pinned."""
    empty = torch.empty
    monkeypatch.setattr(torch, "empty", lambda shape, dtype, pin_memory: empty(shape, dtype=dtype))
    tensor = torch.arange(6).reshape(2, 3).to(getattr(torch, dtype))
    expected = canonical(backend_view(tensor))
    first = _pinned(tensor, None)
    assert (first.dtype, first.tolist()) == (expected.dtype, expected.tolist())
    again = _pinned(tensor.flip(0), first)
    assert again.tolist() == expected[::-1].tolist()
    assert np.shares_memory(first, again) == (dtype != "bfloat16")
    assert _pinned(tensor[:1], first).shape == (1, 3)


def test_a_gpu_has_finished_when_its_copies_are_returned(monkeypatch):
    """Here a copy is made when the stream is waited for, as late as a GPU may make it."""
    started, empty, copy_now = [], torch.empty, torch.Tensor.copy_

    def copy_later(self, source, non_blocking=False):
        if not non_blocking:
            return copy_now(self, source)
        started.append((self, source.clone()))
        return self.zero_()

    class Stream:
        def synchronize(self):
            while started:
                copy_now(*started.pop(0))

    def copied(engine, into=None):
        with monkeypatch.context() as on_a_gpu:
            on_a_gpu.setattr(engine.backend, "_on_cuda", True)
            on_a_gpu.setattr(torch, "empty", lambda shape, dtype, pin_memory: empty(shape, dtype=dtype))
            on_a_gpu.setattr(torch.Tensor, "copy_", copy_later)
            on_a_gpu.setattr(torch.cuda, "current_stream", Stream)
            return engine.own_state(into)

    with running(create_engine, Regression(), seeded(models.mlp)) as rig:
        rig.run(2)
        first = copied(rig.engine)
        assert digest(first) == rig.digest()
        rig.run(2)
        again = copied(rig.engine, first)
        assert digest(again) == rig.digest()
        assert all(np.shares_memory(first[key], array) for key, array in again.items())
