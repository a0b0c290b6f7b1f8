"""Learning rate schedules and warmup, eager and compiled, on the configured backend."""

import math
from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import pytest

from everstep.optim import OptimizationConfig
from everstep.task.optim.building import build_learning_rate

pytestmark = pytest.mark.backend


def rates(steps: list[int], tolerance: float = 1e-7, **parts: Any) -> list[float]:
    """Returns the learning rates at `steps`; asserts that the compiled schedule returns the same."""
    rate = build_learning_rate(OptimizationConfig(parts))
    eager = [float(keras.ops.convert_to_numpy(rate(step))) for step in steps]
    for compiled in compiled_rates(rate):
        assert [compiled(step) for step in steps] == pytest.approx(eager, abs=tolerance)
    return eager


def compiled_rates(rate: Callable[[Any], Any]) -> list[Callable[[int], float]]:
    """Returns the schedule compiled in each way that a training step may be."""
    if keras.backend.backend() == "tensorflow":
        import tensorflow as tf

        signature = [tf.TensorSpec((), tf.int64)]
        made = [tf.function(rate, input_signature=signature, jit_compile=xla) for xla in (False, True)]
    elif keras.backend.backend() == "jax":
        import jax

        made = [jax.jit(rate)]
    else:
        made = [rate]
    return [lambda step, run=run: float(keras.ops.convert_to_numpy(run(np.int64(step)))) for run in made]


def cosine(initial: float = 1.0, steps: int = 100, **more: Any) -> dict[str, Any]:
    return {"type": "cosine", "cosine": {"initial_learning_rate": initial, "decay_steps": steps, **more}}


def test_linear_warmup_ends_on_an_unshifted_schedule():
    warmup = {"type": "linear", "linear": {"warmup_steps": 10}}
    expected = [0.0, 0.48776413, 0.97552826, 0.5, 0.0]
    assert rates([0, 5, 10, 50, 100], learning_rate=cosine(), warmup=warmup) == pytest.approx(expected, abs=1e-6)


def test_linear_warmup_starts_at_its_configured_rate():
    warmup = {"type": "linear", "linear": {"warmup_steps": 4, "warmup_learning_rate": 0.5}}
    constant = {"type": "constant", "constant": {"learning_rate": 1.0}}
    assert rates([0, 1, 4, 9], learning_rate=constant, warmup=warmup) == pytest.approx([0.5, 0.625, 1, 1])


def test_polynomial_warmup_counts_step_0_as_1():
    warmup = {"type": "polynomial", "polynomial": {"warmup_steps": 10, "power": 2}}
    top = 0.5 * (1 + math.cos(math.pi / 10))
    found = rates([0, 1, 5, 10, 50], learning_rate=cosine(), warmup=warmup)
    assert found == pytest.approx([top / 100, top / 100, top / 4, top, 0.5], abs=1e-6)


def test_a_warmup_of_zero_steps_has_no_effect():
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
        (
            "cosine_restarts",
            {"initial_learning_rate": 1, "first_decay_steps": 10, "m_mul": 0.5, "alpha": 0.1},
            {0: 1, 5: 0.55, 10: 0.1 + 0.9 * 0.5, 20: 0.1 + 0.9 * 0.25, 30: 0.1 + 0.9 * 0.25},
        ),
        (
            "cosine_restarts",
            {"initial_learning_rate": 1, "first_decay_steps": 10, "t_mul": 1, "offset": 1},
            {0: 1, 1: 1, 6: 0.5, 11: 1, 16: 0.5, 1_000_001: 1, 1_000_006: 0.5},
        ),
        ("power", {"initial_learning_rate": 0.1}, {0: 0.1, 1: 0.1, 4: 0.05, 100: 0.01}),
        (
            "power_linear",
            {"initial_learning_rate": 1, "total_decay_steps": 100, "power": -0.5, "linear_decay_fraction": 0.5},
            {0: 1, 4: 0.5, 25: 0.2, 50: 50**-0.5, 75: 75**-0.5 * 0.5, 100: 0, 150: 0},
        ),
        (
            "power_linear",
            {"initial_learning_rate": 1, "total_decay_steps": 100, "power": -0.5, "offset": 20},
            {10: 1, 21: 1, 24: 0.5, 110: 90**-0.5, 119: 99**-0.5 * 0.1, 120: 0, 1000: 0},
        ),
        (
            "power_with_offset",
            {"initial_learning_rate": 0.1, "offset": 10, "pre_offset_learning_rate": 5},
            {0: 5, 10: 5, 11: 0.1, 14: 0.05},
        ),
        (
            "power_with_offset",
            {"initial_learning_rate": 3, "power": 1, "pre_offset_learning_rate": 5},
            {0: 5, 1: 3, 2: 5, 9: 5},
        ),
        (
            "step_cosine_with_offset",
            {"boundaries": [100, 200], "values": [1, 0.5]},
            {0: 1, 50: 0.75, 100: 0.5, 150: 0.25, 200: 0, 300: 0},
        ),
        (
            "step_cosine_with_offset",
            {"boundaries": [100, 300], "values": [1, 0.5, 0.1], "offset": 20},
            {10: 1, 20: 1, 70: 0.75, 120: 0.5, 220: 0.3, 320: 0.1, 1000: 0.1},
        ),
        ("step_cosine_with_offset", {"boundaries": [10], "values": [2]}, {0: 2, 5: 1, 10: 0, 11: 0}),
        (  # a boundary at 0, as in Model Garden's files: one value for each boundary
            "step_cosine_with_offset",
            {"boundaries": [0, 100, 300], "values": [1, 0.5, 0.1], "offset": 20},
            {10: 1, 20: 1, 70: 0.75, 120: 0.5, 220: 0.3, 320: 0.1, 1000: 0.1},
        ),
    ],
)
def test_schedules(type_: str, fields: dict[str, Any], expected: dict[int, float]):
    found = rates(list(expected), learning_rate={"type": type_, type_: fields})
    assert found == pytest.approx(list(expected.values()), abs=1e-6)


LONG = {  # each with the step at which it ends or changes
    **{
        f"polynomial {power:g} over {steps}": (
            {"initial_learning_rate": 0.1, "decay_steps": steps, "end_learning_rate": end, "power": power},
            steps,
        )
        for power, end in ((0.3, 0.0), (0.9, 0.0), (1.0, 0.0), (1.5, 0.01), (2.0, 0.0))
        for steps in (7, 30, 1000, 123_457)
    },
    "polynomial again": (
        {"initial_learning_rate": 0.1, "decay_steps": 41, "end_learning_rate": 0.0, "power": 0.5, "cycle": True},
        41,
    ),
    "polynomial later": ({"initial_learning_rate": 0.1, "decay_steps": 7, "power": 0.5, "offset": 5}, 12),
    "cosine": ({"initial_learning_rate": 0.1, "decay_steps": 37}, 37),
    "exponential": ({"initial_learning_rate": 0.1, "decay_steps": 37, "decay_rate": 0.5}, 37),
    "exponential stairs": (
        {"initial_learning_rate": 0.1, "decay_steps": 41, "decay_rate": 0.5, "staircase": True},
        41,
    ),
    "stepwise": ({"boundaries": [10, 20], "values": [0.1, 0.05, 0.01], "offset": 3}, 13),
    "cosine_restarts": ({"initial_learning_rate": 0.1, "first_decay_steps": 7, "t_mul": 1.5, "m_mul": 0.5}, 7),
    "cosine_restarts evenly": ({"initial_learning_rate": 0.1, "first_decay_steps": 7, "t_mul": 1.0, "offset": 4}, 11),
    "power": ({"initial_learning_rate": 0.1, "power": -0.5}, 1),
    "power_linear": ({"initial_learning_rate": 0.1, "total_decay_steps": 37, "power": -0.7, "offset": 5}, 42),
    "power_with_offset": ({"initial_learning_rate": 0.1, "offset": 10, "pre_offset_learning_rate": 0.2}, 10),
    "step_cosine_with_offset": ({"boundaries": [10, 20], "values": [0.1, 0.05], "offset": 3}, 23),
}


@pytest.mark.parametrize("name", LONG)
def test_every_rate_is_finite_and_not_negative(name: str):
    """Around the end of a schedule and long after it, with and without a warmup, in every way to compile it."""
    fields, end = LONG[name]
    type_ = name.split()[0]
    near = {0, 1, 2, 4, 5, 6, *(k * end + d for k in (1, 2, 3, 7, 20, 1000) for d in (-1, 0, 1)), 10**9}
    steps = sorted(step for step in near if step >= 0)
    warmups = [{}, *({"type": t, t: {"warmup_steps": 5, **more}} for t, more in WARMUPS.items())]
    for warmup in warmups if "over" not in name else warmups[:1]:
        parts = {"learning_rate": {"type": type_, type_: fields}, **({"warmup": warmup} if warmup else {})}
        found = rates(steps, tolerance=1e-4, **parts)  # a small power amplifies the last bit
        assert all(0 <= rate < 0.201 for rate in found), list(zip(steps, found, strict=True))


WARMUPS: dict[str, dict[str, Any]] = {"linear": {}, "polynomial": {"power": 0.5}}


@pytest.mark.parametrize("power", [0, 0.3, 0.5, 1, 1.5, 3])
@pytest.mark.parametrize("steps", [7, 30, 1000, 123_457])
def test_a_polynomial_ends_exactly_at_its_end(power: float, steps: int):
    fields = {"initial_learning_rate": 0.5, "decay_steps": steps, "end_learning_rate": 0.25, "power": power}
    rate = build_learning_rate(OptimizationConfig({"learning_rate": {"type": "polynomial", "polynomial": fields}}))
    for run in compiled_rates(rate):
        assert {run(step) for step in (steps, steps + 1, 2 * steps, 10**9)} == {0.25 if power else 0.5}
    keras_own = keras.optimizers.schedules.PolynomialDecay(**fields)
    for step in (0, 1, steps // 2, steps - 1):
        assert float(rate(step)) == pytest.approx(float(keras_own(step)), rel=2e-5)


@pytest.mark.parametrize("steps", [3, 41, 47, 55, 61, 83])
def test_stairs_and_cycles_begin_at_the_exact_step(steps: int):
    stairs = {"initial_learning_rate": 1.0, "decay_steps": steps, "decay_rate": 0.5, "staircase": True}
    cycle = {"initial_learning_rate": 1.0, "decay_steps": steps, "end_learning_rate": 0.0, "cycle": True}
    near = [max(k * steps + d, 0) for k in range(20) for d in (-1, 0, 1)]
    expected = [0.5 ** (step // steps) for step in near]
    assert rates(near, learning_rate={"type": "exponential", "exponential": stairs}) == pytest.approx(expected)
    expected = [1 - step / (steps * max(math.ceil(step / steps), 1)) for step in near]
    found = rates(near, learning_rate={"type": "polynomial", "polynomial": cycle})
    assert found == pytest.approx(expected, abs=1e-6)


def test_power_linear_is_exactly_zero_at_the_end():
    fields = {"initial_learning_rate": 0.3, "total_decay_steps": 70, "linear_decay_fraction": 0.3, "offset": 7}
    assert rates([77, 78, 10_000], learning_rate={"type": "power_linear", "power_linear": fields}) == [0, 0, 0]


@pytest.mark.parametrize("factor", [1.0, 1.1, 1.5, 3.0])
def test_cosines_restart_at_the_exact_step(factor: float):
    fields = {"initial_learning_rate": 1, "first_decay_steps": 10, "t_mul": factor}
    start, length, expected = 0.0, 10.0, []
    steps = list(range(0, 60))
    for step in steps:
        while step >= start + length - 1e-9:
            start, length = start + length, length * factor
        expected.append(0.5 * (1 + math.cos(math.pi * (step - start) / length)))
    parts = {"type": "cosine_restarts", "cosine_restarts": fields}
    rate = build_learning_rate(OptimizationConfig({"learning_rate": parts}))
    found = [float(keras.ops.convert_to_numpy(rate(step))) for step in steps]
    assert found == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize(
    "type_",
    sorted(
        SCHEDULES := {
            "cosine_restarts": {"initial_learning_rate": 1.0, "first_decay_steps": 5},
            "exponential": {"initial_learning_rate": 1.0, "decay_steps": 5, "decay_rate": 0.5, "staircase": True},
            "polynomial": {"initial_learning_rate": 1.0, "decay_steps": 5, "power": 0.5},
            "power": {"initial_learning_rate": 1.0},
            "power_linear": {"initial_learning_rate": 1.0, "total_decay_steps": 50, "offset": 2},
            "power_with_offset": {"initial_learning_rate": 1.0, "offset": 2},
            "step_cosine_with_offset": {"boundaries": [5, 20], "values": [1.0, 0.5], "offset": 2},
        }
    ),
)
def test_saving_and_loading_schedules(type_: str):
    parts = {"type": type_, type_: SCHEDULES[type_]}
    rate = build_learning_rate(OptimizationConfig({"learning_rate": parts}))
    again = keras.optimizers.schedules.deserialize(keras.optimizers.schedules.serialize(rate))
    assert [float(again(step)) for step in (0, 3, 8, 30)] == [float(rate(step)) for step in (0, 3, 8, 30)]
