"""One task on several backends: the same state keys, states that move between backends, and the same losses."""

import os
import subprocess
import sys
from pathlib import Path

import keras
import numpy as np
import pytest
from tests.engine import across

from everstep.engine.backend import installed
from everstep.testing import models

SCRIPT = Path(__file__).with_name("across.py")
# Every day a run resumes on another backend: tests/test_resume_changed.py.
pytestmark = [pytest.mark.slow, pytest.mark.full]


def trained_arrays(backend, out, *given):
    """Trains on a backend, in a subprocess if it is not the backend of this process; returns the arrays."""
    if backend == keras.backend.backend():
        across.main(out, *given)
    else:
        train_in_subprocess(backend, out, *given)
    with np.load(out) as arrays:
        return dict(arrays)


def train_in_subprocess(backend, out, *given):
    environment = {**os.environ, "KERAS_BACKEND": backend, "TF_CPP_MIN_LOG_LEVEL": "3"}
    result = subprocess.run(
        [sys.executable, SCRIPT, out, *given], capture_output=True, text=True, env=environment, check=False
    )
    assert result.returncode == 0, result.stderr


@pytest.fixture(scope="module")
def tensorflow(tmp_path_factory):
    out = tmp_path_factory.mktemp("across") / "tensorflow.npz"
    return out, trained_arrays("tensorflow", out)


@pytest.fixture(scope="module", params=["jax", "torch"])
def arrays_of_both(request, tensorflow):
    """The arrays of TensorFlow, and those of another backend that started from the same states."""
    if request.param not in installed():
        pytest.skip(f"{request.param} is not installed")
    out, arrays = tensorflow
    return arrays, trained_arrays(request.param, out.with_stem(request.param), out)


def test_same_keys_shapes_and_types(arrays_of_both):
    for one, other in (arrays_of_both, arrays_of_both[::-1]):
        assert {k: (v.shape, v.dtype) for k, v in one.items()} == {k: (v.shape, v.dtype) for k, v in other.items()}
    assert len([key for key in arrays_of_both[0] if key.startswith("held|")]) > 30


def test_state_moves_between_backends(arrays_of_both):
    starts = [key for key in arrays_of_both[0] if "|before|" in key]
    for key in starts:
        np.testing.assert_array_equal(arrays_of_both[0][key], arrays_of_both[1][key], err_msg=key)


@pytest.mark.parametrize("kind", models.MODELS)
def test_same_losses_over_a_hundred_steps(arrays_of_both, kind):
    losses = arrays_of_both[0][f"{kind}|losses"]
    assert len(losses) == 100
    np.testing.assert_allclose(losses, arrays_of_both[1][f"{kind}|losses"], rtol=1e-5)


@pytest.mark.parametrize("kind", models.MODELS)
def test_counters_agree_exactly(arrays_of_both, kind):
    for key, value in arrays_of_both[0].items():
        if key.startswith(f"{kind}|after") and value.dtype == np.int64:
            np.testing.assert_array_equal(value, arrays_of_both[1][key], err_msg=key)
