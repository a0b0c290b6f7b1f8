"""Sums in a fixed order, compared with XLA's own operations."""

import keras
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

if keras.backend.backend() != "jax":
    pytest.skip("only JAX lowers these operations", allow_module_level=True)

import jax
import jax.numpy as jnp
from jax import lax

from everstep.engine.certified import _platform
from everstep.engine.ordered_sums import EMBEDDING, POOLING, ordered_sums

pytestmark = [pytest.mark.backend, pytest.mark.gpu]

PLATFORM = _platform()


def results_of_both(function, *arguments):
    """Returns what was replaced, and the results of a function without and with the replacement."""
    plain = jax.jit(lambda *values: function(*values)).lower(*arguments).compile()(*arguments)
    with ordered_sums(PLATFORM) as replaced:
        program = jax.jit(lambda *values: function(*values)).lower(*arguments).compile()
    return set(replaced), np.asarray(plain), np.asarray(program(*arguments))


def whole_numbers(seed, shape, dtype="float32"):
    """Returns numbers whose sums are exact, in any order."""
    return np.random.default_rng(seed).integers(-8, 9, shape).astype(dtype)


@settings(max_examples=5)
@given(
    rows=st.integers(1, 12),
    width=st.sampled_from([(1,), (5,), (2, 3)]),
    count=st.integers(1, 200),
    mode=st.sampled_from(["drop", "clip", "promise_in_bounds"]),
    dtype=st.sampled_from(["float32", "bfloat16"]),
    seed=st.integers(0, 99),
)
def test_rows_are_added_as_by_a_scatter(rows, width, count, mode, dtype, seed):
    outside = 0 if mode == "promise_in_bounds" else 3
    places = np.random.default_rng(seed).integers(0, rows + outside, count)
    table = jnp.asarray(whole_numbers(seed, (rows, *width)) / 4, dtype)
    updates = jnp.asarray(np.sign(whole_numbers(seed + 1, (count, *width))), dtype)

    def added(table, places, updates):
        return table.at[places].add(updates, mode=mode)

    replaced, plain, ordered = results_of_both(added, table, places, updates)
    assert replaced == {EMBEDDING}
    exact = np.array(table, "float32")
    at = np.clip(places, 0, rows - 1) if mode == "clip" else places
    for place, update in zip(at, np.array(updates, "float32"), strict=True):
        if place < rows:
            exact[place] += update
    np.testing.assert_array_equal(ordered.astype("float32"), exact.astype(table.dtype).astype("float32"))
    assert plain.dtype == ordered.dtype


def test_rows_of_one_index_fill_several_blocks():
    places = np.array([3] * 200 + [1] * 70 + [3] * 5 + [0])
    updates = whole_numbers(0, (len(places), 2))
    replaced, plain, ordered = results_of_both(
        lambda t, p, u: t.at[p].add(u), np.zeros((5, 2), "float32"), places, updates
    )
    assert replaced == {EMBEDDING}
    np.testing.assert_array_equal(ordered, plain)


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_a_row_that_is_not_finite_stays_in_its_place(value):
    updates = np.ones((6, 2), "float32")
    updates[2, 0] = value
    places = np.array([0, 1, 1, 2, 2, 0])
    _, plain, ordered = results_of_both(lambda t, p, u: t.at[p].add(u), np.zeros((4, 2), "float32"), places, updates)
    assert np.isnan(ordered[1]).all()
    np.testing.assert_array_equal(ordered[[0, 2, 3]], plain[[0, 2, 3]])


def test_other_sums_are_left_alone():
    places = np.array([0, 1, 1])
    for table, updates in ((np.zeros((4, 2), "int32"), np.ones((3, 2), "int32")), (np.zeros(4, "float32"), 1.0)):
        replaced, plain, ordered = results_of_both(lambda t, p, u: t.at[p].add(u), table, places, updates)
        assert not replaced
        np.testing.assert_array_equal(plain, ordered)


def test_nothing_is_replaced_outside_of_the_block():
    function = lambda t, p, u: t.at[p].add(u)  # noqa: E731
    arguments = np.zeros((4, 2), "float32"), np.array([0, 1, 1]), np.ones((3, 2), "float32")
    before = jax.jit(lambda *values: function(*values)).lower(*arguments).as_text()
    with ordered_sums(PLATFORM):
        inside = jax.jit(lambda *values: function(*values)).lower(*arguments).as_text()
    after = jax.jit(lambda *values: function(*values)).lower(*arguments).as_text()
    assert before == after
    assert "stablehlo.sort" in inside
    assert "stablehlo.sort" not in before


@settings(max_examples=5)
@given(
    size=st.tuples(st.integers(4, 9), st.integers(4, 9)),
    window=st.tuples(st.integers(1, 3), st.integers(1, 3)),
    strides=st.tuples(st.integers(1, 3), st.integers(1, 3)),
    padding=st.sampled_from(["SAME", "VALID", ((0, 0), (1, 0), (0, 2), (0, 0))]),
    filled=st.sampled_from(["numbers", "equal", "infinite"]),
    dtype=st.sampled_from(["float32", "bfloat16"]),
    seed=st.integers(0, 99),
)
def test_the_gradient_of_max_pooling_is_that_of_xla(size, window, strides, padding, filled, dtype, seed):
    images = whole_numbers(seed, (2, *size, 3))
    if filled == "equal":  # the first of the largest counts
        images[:] = 1
    elif filled == "infinite":
        images[images < 0] = -np.inf

    def gradient(images):
        def pooled(images):
            shape, steps = (1, *window, 1), (1, *strides, 1)
            largest = lax.reduce_window(images, -jnp.inf, lax.max, shape, steps, padding)
            weights = jnp.arange(1, largest.size + 1, dtype=largest.dtype).reshape(largest.shape) % 7
            return jnp.sum(jnp.where(jnp.isfinite(largest), largest, 0) * weights)

        return jax.grad(pooled)(images)

    replaced, plain, ordered = results_of_both(gradient, jnp.asarray(images, dtype))
    assert replaced == {POOLING}
    np.testing.assert_array_equal(ordered.astype("float32"), plain.astype("float32"))
