"""The moving average of the weights: eager, compiled and with loss scaling, on the configured backend."""

from typing import Any

import keras
import numpy as np
import pytest
from keras import layers, ops

from everstep.engine.backend import create_engine
from everstep.engine.state import collect
from everstep.errors import UsageError
from everstep.optim import OptimizationConfig
from everstep.task.optim.building import build
from everstep.task.optim.ema import ExponentialMovingAverage, find_average
from everstep.testing import models
from everstep.testing.problems import raises_problem
from everstep.testing.tasks import Regression, running, seeded

pytestmark = pytest.mark.backend


def number(value: Any) -> float:
    return float(ops.convert_to_numpy(value))


def averaged(steps: int = 6, gradient: float = 1.0, **settings: Any) -> tuple[list[float], list[float]]:
    """Returns a weight that starts at 1 and falls by 0.1 a step, and its average, after each step."""
    optimizer = ExponentialMovingAverage(keras.optimizers.SGD(0.1), **settings)
    weight = keras.Variable(1.0, name="weight")
    weights, averages = [], []
    for _ in range(steps):
        optimizer.apply([ops.convert_to_tensor(gradient)], [weight])
        weights.append(number(weight))
        averages.append(number(optimizer.pairs()[0][1]))
    return weights, averages


def by_hand(weights: list[float], decays: list[float], start: float = 1.0) -> list[float]:
    average, found = start, []
    for weight, decay in zip(weights, decays, strict=True):
        average = decay * average + (1 - decay) * weight
        found.append(average)
    return found


@pytest.mark.parametrize(
    ("settings", "decays"),
    [
        ({}, {0: 0.1, 1: 2 / 11, 2: 3 / 12, 10: 11 / 20, 890: 891 / 900, 891: 0.99, 10_000: 0.99}),
        ({"start_step": 5}, {0: 0, 4: 0, 5: 0.1, 6: 2 / 11, 10: 6 / 15}),
        ({"dynamic_decay": False, "average_decay": 0.5}, {0: 0.5, 1: 0.5, 9: 0.5}),
        ({"dynamic_decay": False, "start_step": 3}, {2: 0, 3: 0.99}),
    ],
)
def test_decay(settings: dict[str, Any], decays: dict[int, float]):
    average = ExponentialMovingAverage(keras.optimizers.SGD(), **settings)
    assert [number(average.decay(step)) for step in decays] == pytest.approx(list(decays.values()), abs=1e-6)


def test_the_average_starts_from_the_weights():
    weights, averages = averaged(dynamic_decay=False)
    assert averages == pytest.approx(by_hand(weights, [0.99] * 6), abs=1e-6)
    assert weights == pytest.approx([0.9, 0.8, 0.7, 0.6, 0.5, 0.4], abs=1e-6)


def test_dynamic_decay_follows_the_steps_done():
    weights, averages = averaged()
    assert averages == pytest.approx(by_hand(weights, [(1 + s) / (10 + s) for s in range(1, 7)]), abs=1e-6)


def test_before_the_start_step_the_average_is_a_copy():
    weights, averages = averaged(start_step=4, dynamic_decay=False)
    assert averages[:3] == weights[:3]
    assert averages[3:] == pytest.approx(by_hand(weights[3:], [0.99] * 3, weights[2]), abs=1e-6)


def test_start_copies_weights_that_were_loaded_later():
    optimizer, weight = ExponentialMovingAverage(keras.optimizers.SGD(0.1)), keras.Variable(1.0)
    optimizer.build([weight])
    weight.assign(5.0)
    assert number(optimizer.pairs()[0][1]) == 1.0
    optimizer.start()
    assert number(optimizer.pairs()[0][1]) == 5.0


def test_steps_that_only_accumulate_do_not_change_the_average():
    optimizer = ExponentialMovingAverage(keras.optimizers.SGD(0.1, gradient_accumulation_steps=2))
    weight = keras.Variable(1.0)
    found = []
    for _ in range(4):
        optimizer.apply([ops.convert_to_tensor(1.0)], [weight])
        found.append((number(weight), number(optimizer.pairs()[0][1])))
    decayed = by_hand([0.9, 0.8], [2 / 11, 3 / 12])
    assert np.ravel(found) == pytest.approx([1, 1, 0.9, decayed[0], 0.9, decayed[0], 0.8, decayed[1]], abs=1e-6)


def test_learning_rate_and_iterations_are_those_of_the_inner_optimizer():
    optimizer = ExponentialMovingAverage(keras.optimizers.Adam(0.5))
    assert number(optimizer.learning_rate) == 0.5
    optimizer.learning_rate = 0.25
    assert number(optimizer.inner_optimizer.learning_rate) == 0.25
    optimizer.build([keras.Variable(1.0)])
    assert number(optimizer.iterations) == 0


def test_saving_and_loading(tmp_path):
    config = {"optimizer": {"type": "lamb"}, "ema": {"average_decay": 0.5, "start_step": 3, "dynamic_decay": False}}
    optimizer = build(OptimizationConfig(config))
    again = keras.optimizers.deserialize(keras.optimizers.serialize(optimizer))
    assert type(again) is ExponentialMovingAverage
    assert again.get_config() == optimizer.get_config()


def test_no_average_unless_configured():
    assert find_average(build(OptimizationConfig())) is None
    optimizer = build(OptimizationConfig({"ema": {}}))
    assert find_average(optimizer) is optimizer
    assert optimizer.average_decay == 0.99
    for name, value in (("average_decay", 1.5), ("start_step", -1)):
        with raises_problem(key=f"trainer.optimizer_config.ema.{name}", received=value):
            build(OptimizationConfig({"ema": {name: value}}))


def test_find_average_through_wrappers():
    average = ExponentialMovingAverage(keras.optimizers.SGD())
    assert find_average(keras.optimizers.LossScaleOptimizer(average)) is average
    outside = ExponentialMovingAverage(keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD()))
    assert find_average(outside) is outside
    assert find_average(keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD())) is None
    assert find_average(None) is None


def normalized(dtype: str | None = None) -> keras.Model:
    """Returns a model with batch statistics and a seed beside its weights."""
    return keras.Sequential(
        [
            keras.Input((4,)),
            layers.Dense(3, dtype=dtype),
            layers.BatchNormalization(dtype=dtype),
            layers.Dropout(0.1, dtype=dtype),
            layers.Dense(1, dtype=dtype),
        ]
    )


def test_statistics_are_averaged_if_configured():
    model = seeded(normalized)
    optimizer = ExponentialMovingAverage(keras.optimizers.SGD(0.1), trainable_weights_only=False)
    with raises_problem(key="trainable_weights_only", received=False, remedy=r"call track\(model\) first"):
        optimizer.build(model.trainable_variables)
    optimizer.track(model)
    optimizer.build(model.trainable_variables)
    names = [variable.path.split("/")[-1] for variable, _ in optimizer.pairs()]
    assert sorted(names) == ["beta", "bias", "bias", "gamma", "kernel", "kernel", "moving_mean", "moving_variance"]
    with pytest.raises(UsageError) as caught:
        optimizer.track(model)
    assert (caught.value.key, caught.value.reason) == ("track(model)", "is called too late")


def wrapped(scaled: str, **settings: Any) -> keras.optimizers.Optimizer:
    """Returns SGD with a moving average, optionally wrapped for loss scaling."""
    optimizer: Any = ExponentialMovingAverage(keras.optimizers.SGD(0.05), **settings)
    if scaled == "outside":
        optimizer = keras.optimizers.LossScaleOptimizer(optimizer, initial_scale=256.0)
    return optimizer


@pytest.mark.parametrize(("scaled", "only"), [("no", True), ("no", False), ("outside", False)])
def test_averages_in_compiled_steps(scaled: str, only: bool):
    """The averages of an engine follow from its weights after each step."""
    model = seeded(lambda: normalized("mixed_float16" if scaled == "outside" else None))
    optimizer = wrapped(scaled, trainable_weights_only=only)
    find_average(optimizer).track(model)
    with running(create_engine, Regression(), model, optimizer) as rig:
        states = [rig.engine.state()]
        for _ in range(3):
            rig.run(1)
            states.append(rig.engine.state())
    keys = [key for key in states[0] if key.endswith("/moving_average")]
    assert len(keys) == (6 if only else 8)
    check_averages(states, keys)


def check_averages(states: list[dict[str, np.ndarray]], keys: list[str]) -> None:
    prefix = keys[0].partition("model/")[0]
    for key in keys:
        weight = key.removeprefix(prefix).removesuffix("/moving_average")
        np.testing.assert_array_equal(states[0][key], states[0][weight])
        expected = states[0][weight]
        for step, state in enumerate(states[1:], 1):
            decay = (1 + step) / (10 + step)
            expected = decay * expected + (1 - decay) * state[weight]
            np.testing.assert_allclose(state[key], expected, rtol=1e-5, atol=1e-6, err_msg=f"{key} after {step}")
        assert not np.array_equal(states[-1][key], states[-1][weight])


def test_keys_do_not_depend_on_earlier_models():
    found = []
    for _ in range(2):
        model, optimizer = normalized(), wrapped("outside", trainable_weights_only=False)
        find_average(optimizer).track(model)
        optimizer.build(model.trainable_variables)
        keyed = collect({"model": model, "optimizer": optimizer})
        found.append([key for key in keyed if key.startswith("optimizer/")])
    assert found[0] == found[1]
    assert "optimizer/inner/model/batch_normalization/moving_mean/moving_average" in found[0]
    assert "optimizer/inner/inner/iteration" in found[0]


def test_a_restored_state_continues_exactly():
    def rig(seed: int) -> Any:
        return running(create_engine, Regression(), seeded(models.plain_mlp, seed), wrapped("no"))

    with rig(0) as first:
        first.run(3)
        state = first.engine.state()
        first.run(2)
        wanted = first.digest()
        position = first.feed.state()
    with rig(1) as second:
        second.run(3)
        second.engine.load(state)
        second.run(2)
        assert second.digest() == wanted
        assert second.feed.state() == position


def test_an_overflow_does_not_change_the_average():
    model = seeded(lambda: normalized("mixed_float16"))
    optimizer: Any = ExponentialMovingAverage(keras.optimizers.SGD(0.01), start_step=100)
    optimizer = keras.optimizers.LossScaleOptimizer(optimizer, initial_scale=2.0**40)
    with running(create_engine, Regression(), model, optimizer) as rig:
        before = rig.engine.state()
        rig.run(1)
        after = rig.engine.state()
    key = "optimizer/inner/model/dense/kernel/moving_average"
    np.testing.assert_array_equal(after[key], before[key])
    assert after["optimizer/inner/inner/iteration"] == 0
    assert after["optimizer/dynamic_scale"] == 2.0**39
