"""Copies of many variables in a few transfers, and the search for NaN among them (JAX)."""

import keras
import numpy as np
import pytest

from everstep.engine.backend import create_engine
from everstep.testing.models import mlp
from everstep.testing.tasks import Regression, running, seeded

pytestmark = [
    pytest.mark.backend,
    pytest.mark.gpu,
    pytest.mark.skipif(keras.backend.backend() != "jax", reason="PyTorch copies into pinned memory by itself"),
]

BAD = (np.nan, np.inf, -np.inf)


@pytest.fixture
def jax_copies():
    from everstep.engine import jax_copies

    return jax_copies


@pytest.fixture
def values():
    import jax.numpy as jnp

    random = np.random.default_rng(0)
    many = {f"of {n}": jnp.asarray(random.normal(size=(n % 7, 3)).astype("float32")) for n in range(200)}
    return many | {
        "bfloat16": jnp.asarray(random.normal(size=5), jnp.bfloat16),
        "float16": jnp.ones((), jnp.float16),
        "float8": jnp.ones(3, jnp.float8_e4m3fn),
        "integers": jnp.arange(-3, 3),
        "bytes": jnp.int8([1, -2]),
        "seed": jnp.uint32([7, 2**32 - 1]),
        "booleans": jnp.array([True, False]),
        "large": jnp.asarray(random.normal(size=(700, 700)).astype("float32")),
        "empty": jnp.zeros((0, 4)),
        "minus zero": jnp.float32(-0.0),
    }


def compiled(jax_copies, values):
    """Returns the copies of variables whose two calls are compiled."""
    copies = jax_copies.HostCopies(values)
    assert copies.copy(values) is None  # nobody waits for the thread
    assert copies.are_finite(values) is None
    finish(copies)
    return copies


def finish(copies):
    """Waits until the two calls are compiled."""
    for later in (copies._copy, copies._are_finite):
        assert later._future.result() is not None


def test_copies_have_the_bits_shapes_and_types(jax_copies, values):
    found = compiled(jax_copies, values).copy(values)
    assert list(found) == list(values)
    for key, value in values.items():
        expected = np.asarray(value)
        assert (found[key].dtype, found[key].shape) == (expected.dtype, expected.shape), key
        assert found[key].tobytes() == expected.tobytes(), key


def test_a_payload_of_nan_travels_unchanged(jax_copies, values):
    import jax

    bits = np.array([0x7FC00001, 0xFF800123], "uint32")
    values["of 8"] = jax.device_put(np.resize(bits, 3).view("float32").reshape(1, 3))
    assert compiled(jax_copies, values).copy(values)["of 8"].view("uint32").tolist() == [[*bits, bits[0]]]


@pytest.mark.parametrize("key", ["of 5", "of 199", "bfloat16", "float16", "large", "minus zero"])
def test_a_number_that_is_not_finite_is_seen(jax_copies, values, key):
    copies = compiled(jax_copies, values)
    assert copies.are_finite(values) is True
    for bad in BAD:
        array = values[key]
        assert copies.are_finite(values | {key: array.at[(-1,) * array.ndim].set(bad)}) is False


def test_earlier_copies_stay_as_they_were(jax_copies, values):
    copies = compiled(jax_copies, values)
    first = copies.copy(values)
    before = {key: value.tobytes() for key, value in first.items()}
    copies.copy({key: (value * 0).astype(value.dtype) for key, value in values.items()})
    assert {key: value.tobytes() for key, value in first.items()} == before


def test_what_does_not_pay_off_or_cannot_be_copied_is_left_out(jax_copies, values):
    import jax
    import jax.numpy as jnp

    pays_off = jax_copies.HostCopies.pays_off
    assert pays_off(values)
    assert not pays_off({"large": values["large"]})
    assert pays_off({"huge": jnp.zeros(jax_copies.FEW_BYTES // 4)})
    assert not pays_off(values | {"key": jax.random.key(0)})


def test_without_pinned_memory_each_variable_is_copied_by_itself(jax_copies, values, monkeypatch):
    copies = compiled(jax_copies, values)

    def fails(values):
        raise RuntimeError("RESOURCE_EXHAUSTED: pinned memory")

    monkeypatch.setattr(copies._copy, "compiled", lambda likes: fails)
    assert copies.copy(values) is None
    monkeypatch.undo()
    assert copies.copy(values) is None, "it is not tried again"


def test_what_was_prepared_before_training_copies_at_once(jax_copies, values):
    copies = jax_copies.HostCopies(values)
    copies.prepare()
    finish(copies)
    assert copies.copy(values) is not None
    assert copies.are_finite(values) is True


def test_an_engine_copies_the_same_in_both_ways(jax_copies, monkeypatch):
    monkeypatch.setattr(jax_copies, "FEW_VARIABLES", 1)
    with running(create_engine, Regression(), seeded(mlp)) as rig:
        rig.run(2)
        backend = rig.engine.backend
        one_by_one = {key: value.copy() for key, value in rig.engine.own_state().items()}
        monkeypatch.setattr(type(backend), "_copies_together", property(lambda self: True))
        rig.engine.prepare_copies()
        assert rig.engine.non_finite() == []
        assert rig.engine.own_state().keys() == one_by_one.keys()
        (copies,) = backend._host_copies.values()
        finish(copies)
        assert copies.copy(backend._together(tuple(one_by_one))[1]) is not None
        for key, value in rig.engine.own_state().items():
            assert (value.dtype, value.tobytes()) == (one_by_one[key].dtype, one_by_one[key].tobytes()), key
        assert rig.engine.non_finite() == []

        rig.engine.push()
        bias = rig.engine.model.trainable_variables[-1]
        bias.assign(np.full(bias.shape, np.nan))
        rig.engine.pull()
        (key,) = rig.engine.non_finite()
        assert rig.engine.variables[key] is bias
        assert rig.engine.non_finite(rig.engine.own_state()) == [key]
