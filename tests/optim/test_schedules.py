"""Learning rate schedules and warmup, plain and compiled, on whichever backend is configured."""

import math
from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import pytest

from everstep.optim import OptimizationConfig
from everstep.optim.build import build_learning_rate


def rates(steps: list[int], **parts: Any) -> list[float]:
    """Returns the learning rates at `steps`, checked to be the same when compiled."""
    rate = build_learning_rate(OptimizationConfig(parts))
    eager = [float(keras.ops.convert_to_numpy(rate(step))) for step in steps]
    compiled = compile_rate(rate)
    assert [compiled(step) for step in steps] == pytest.approx(eager, abs=1e-7)
    return eager


def compile_rate(rate: Callable[[Any], Any]) -> Callable[[int], float]:
    """Returns the schedule compiled, as a training step would have it."""
    if keras.backend.backend() == "tensorflow":
        import tensorflow as tf

        run = tf.function(rate, input_signature=[tf.TensorSpec((), tf.int64)])
    elif keras.backend.backend() == "jax":
        import jax

        run = jax.jit(rate)
    else:
        run = rate
    return lambda step: float(keras.ops.convert_to_numpy(run(np.int64(step))))


def cosine(initial: float = 1.0, steps: int = 100, **more: Any) -> dict[str, Any]:
    return {"type": "cosine", "cosine": {"initial_learning_rate": initial, "decay_steps": steps, **more}}


def test_linear_warmup_ends_on_an_unshifted_schedule():
    warmup = {"type": "linear", "linear": {"warmup_steps": 10}}
    expected = [0.0, 0.48776413, 0.97552826, 0.5, 0.0]
    assert rates([0, 5, 10, 50, 100], learning_rate=cosine(), warmup=warmup) == pytest.approx(expected, abs=1e-6)


def test_linear_warmup_starts_where_it_is_told():
    warmup = {"type": "linear", "linear": {"warmup_steps": 4, "warmup_learning_rate": 0.5}}
    constant = {"type": "constant", "constant": {"learning_rate": 1.0}}
    assert rates([0, 1, 4, 9], learning_rate=constant, warmup=warmup) == pytest.approx([0.5, 0.625, 1, 1])


def test_polynomial_warmup_counts_step_0_as_1():
    warmup = {"type": "polynomial", "polynomial": {"warmup_steps": 10, "power": 2}}
    top = 0.5 * (1 + math.cos(math.pi / 10))
    found = rates([0, 1, 5, 10, 50], learning_rate=cosine(), warmup=warmup)
    assert found == pytest.approx([top / 100, top / 100, top / 4, top, 0.5], abs=1e-6)


def test_a_warmup_of_no_steps_is_none():
    warmup = {"type": "linear", "linear": {"warmup_steps": 0}}
    assert rates([0, 100], learning_rate=cosine(), warmup=warmup) == pytest.approx([1.0, 0.0], abs=1e-7)


@pytest.mark.parametrize(
    ("type_", "fields", "expected"),
    [
        (
            "stepwise",
            {"boundaries": [10, 20], "values": [1, 0.5, 0.25]},
            {0: 1, 10: 1, 11: 0.5, 20: 0.5, 21: 0.25},
        ),
        ("stepwise", {"boundaries": [10], "values": [1, 0.5], "offset": 5}, {15: 1, 16: 0.5}),
        (
            "exponential",
            {"initial_learning_rate": 1, "decay_steps": 10, "decay_rate": 0.5},
            {0: 1, 10: 0.5, 5: 0.5**0.5},
        ),
        (
            "exponential",
            {"initial_learning_rate": 1, "decay_steps": 10, "decay_rate": 0.5, "staircase": True},
            {9: 1, 10: 0.5, 19: 0.5},
        ),
        (
            "exponential",
            {"initial_learning_rate": 1, "decay_steps": 10, "decay_rate": 0.5, "offset": 10},
            {10: 1, 20: 0.5},
        ),
        (
            "polynomial",
            {"initial_learning_rate": 1, "decay_steps": 10, "end_learning_rate": 0},
            {5: 0.5, 20: 0},
        ),
        (
            "polynomial",
            {"initial_learning_rate": 1, "decay_steps": 10, "end_learning_rate": 0, "power": 2, "offset": 2},
            {2: 1, 7: 0.25, 12: 0},
        ),
        (
            "cosine",
            {"initial_learning_rate": 1, "decay_steps": 100, "alpha": 0.1},
            {0: 1, 100: 0.1, 200: 0.1},
        ),
        ("cosine", {"initial_learning_rate": 1, "decay_steps": 100, "offset": 50}, {100: 0.5, 150: 0}),
    ],
)
def test_schedules(type_: str, fields: dict[str, Any], expected: dict[int, float]):
    found = rates(list(expected), learning_rate={"type": type_, type_: fields})
    assert found == pytest.approx(list(expected.values()), abs=1e-6)
