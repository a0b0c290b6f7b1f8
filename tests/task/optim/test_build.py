"""Building optimizers, on the configured backend."""

import math
from typing import Any

import keras
import pytest

from everstep.errors import UsageError
from everstep.optim import OptimizationConfig
from everstep.task.optim.building import build
from everstep.testing.problems import raises_problem


def cosine(initial: float = 1.0, steps: int = 100, **more: Any) -> dict[str, Any]:
    return {"type": "cosine", "cosine": {"initial_learning_rate": initial, "decay_steps": steps, **more}}


def weights_after(config: OptimizationConfig, steps: int = 2, gradient: float = 1.0) -> dict[str, float]:
    """Returns the weights, by path, that start at 1 and see a constant gradient."""
    optimizer = build(config)
    layers = [keras.layers.Dense(1, name="dense"), keras.layers.LayerNormalization(center=False, name="norm")]
    model = keras.Sequential([keras.Input((1,)), *layers], name="encoder")
    for variable in model.trainable_variables:
        variable.assign(keras.ops.ones_like(variable.value))
    gradients = [gradient * keras.ops.ones_like(variable.value) for variable in model.trainable_variables]
    for _ in range(steps):
        optimizer.apply(gradients, model.trainable_variables)
    return {v.path: float(keras.ops.convert_to_numpy(v).sum()) for v in model.trainable_variables}


def test_the_default_is_adam_with_a_settable_learning_rate():
    optimizer = build(OptimizationConfig())
    assert isinstance(optimizer, keras.optimizers.Adam)
    assert float(optimizer.learning_rate) == pytest.approx(1e-3)
    optimizer.learning_rate = 0.5
    assert float(optimizer.learning_rate) == 0.5


def test_a_schedule_drives_the_optimizer():
    config = OptimizationConfig(
        {
            "optimizer": {"type": "sgd"},
            "learning_rate": cosine(steps=4, offset=1),
            "warmup": {"type": "linear", "linear": {"warmup_steps": 2}},
        }
    )
    top = 0.5 * (1 + math.cos(math.pi / 4))
    assert weights_after(config, 3)["encoder/dense/kernel"] == pytest.approx(1 - 0 - top / 2 - top, abs=1e-6)


def test_sgd_with_decay():
    parts = {
        "optimizer": {"type": "sgd", "sgd": {"decay": 1.0}},
        "learning_rate": {"constant": {"learning_rate": 0.5}},
    }
    assert weights_after(OptimizationConfig(parts), 2)["encoder/dense/bias"] == pytest.approx(1 - 0.5 - 0.25)


@pytest.mark.parametrize("type_", ["sgd", "adam", "adamw", "rmsprop"])
def test_fields_reach_the_optimizer_and_survive_saving(type_: str):
    fields = {
        "sgd": {"momentum": 0.5, "nesterov": True},
        "adam": {"beta_1": 0.8, "epsilon": 1e-3, "amsgrad": True},
        "adamw": {"beta_2": 0.99, "weight_decay_rate": 0.1, "exclude_from_weight_decay": ["bias"]},
        "rmsprop": {"rho": 0.8, "centered": True},
    }[type_]
    config = OptimizationConfig(
        {
            "optimizer": {"type": type_, type_: fields},
            "learning_rate": cosine(offset=3),
            "warmup": {"type": "polynomial", "polynomial": {"warmup_steps": 2}},
        }
    )
    optimizer = build(config)
    renamed = {"weight_decay_rate": "weight_decay", "exclude_from_weight_decay": "exclude"}
    for name, value in fields.items():
        assert getattr(optimizer, renamed.get(name, name)) == value
    again = keras.optimizers.deserialize(keras.optimizers.serialize(optimizer))
    assert type(again) is type(optimizer)
    assert again.get_config() == optimizer.get_config()
    assert float(again._learning_rate(7)) == float(optimizer._learning_rate(7))


def test_adamw_decays_by_name_with_include_before_exclude():
    adamw = {
        "weight_decay_rate": 0.5,
        "gradient_clip_norm": 0,
        "exclude_from_weight_decay": ["norm/", "bias$"],
        "include_in_weight_decay": ["dense/b"],
    }
    parts = {
        "optimizer": {"type": "adamw", "adamw": adamw},
        "learning_rate": {"constant": {"learning_rate": 0.1}},
    }
    weights = weights_after(OptimizationConfig(parts), 1, gradient=0.0)
    assert weights["encoder/norm/gamma"] == 1.0
    assert weights["encoder/dense/kernel"] == pytest.approx(1 - 0.1 * 0.5)
    assert weights["encoder/dense/bias"] == pytest.approx(1 - 0.1 * 0.5)


def test_adamw_clips_by_default():
    assert build(OptimizationConfig({"optimizer": {"type": "adamw"}})).global_clipnorm == 1.0
    unclipped = {"type": "adamw", "adamw": {"gradient_clip_norm": 0}}
    assert build(OptimizationConfig({"optimizer": unclipped})).global_clipnorm is None
    other = {"type": "adamw", "adamw": {"gradient_clip_norm": 0, "clipvalue": 0.5}}
    assert build(OptimizationConfig({"optimizer": other})).clipvalue == 0.5


def test_clipping_is_passed_to_the_optimizer():
    optimizer = build(OptimizationConfig({"optimizer": {"type": "sgd", "sgd": {"global_clipnorm": 2}}}))
    assert (optimizer.clipnorm, optimizer.clipvalue, optimizer.global_clipnorm) == (None, None, 2.0)


@pytest.mark.parametrize(
    ("parts", "key", "fields"),
    [
        ({"learning_rate": {"type": "exponential"}}, "learning_rate.exponential.decay_rate", {"reason": "is required"}),
        ({"learning_rate": {"type": "stepwise"}}, "learning_rate.stepwise.values", {"reason": "is required"}),
        ({"learning_rate": {"type": "polynomial"}}, "learning_rate.polynomial.decay_steps", {"reason": "is required"}),
        (
            {"warmup": {"type": "linear"}},
            "warmup.linear.warmup_steps",
            {"reason": "is required", "remedy": "set it, or warmup_share$"},
        ),
        (
            {"warmup": {"type": "linear", "linear": {"warmup_steps": -1}}},
            "warmup.linear.warmup_steps",
            {"received": -1, "reason": "must be at least 0"},
        ),
        (
            {"learning_rate": {"type": None}},
            "learning_rate.type",
            {"reason": "nothing is selected", "remedy": "choose one of constant"},
        ),
        ({"optimizer": {"type": None}}, "optimizer.type", {"reason": "nothing is selected"}),
        (
            {"learning_rate": cosine(steps=0)},
            "learning_rate.cosine.decay_steps",
            {"received": 0, "reason": "must be more than 0"},
        ),
        (
            {
                "learning_rate": {
                    "type": "polynomial",
                    "polynomial": {"initial_learning_rate": 1, "decay_steps": 0},
                }
            },
            "learning_rate.polynomial.decay_steps",
            {"received": 0, "reason": "must be more than 0"},
        ),
        (
            {"learning_rate": {"type": "stepwise", "stepwise": {"boundaries": [1, 2], "values": [1, 2]}}},
            "learning_rate.stepwise.values",
            {"received": [1.0, 2.0], "reason": "one more than the 2 boundaries, not 2"},
        ),
        (
            {"learning_rate": {"type": "stepwise", "stepwise": {"boundaries": [2, 1], "values": [1, 2, 3]}}},
            "learning_rate.stepwise.boundaries",
            {"received": [2, 1], "reason": "increasing"},
        ),
        (
            {"optimizer": {"type": "sgd", "sgd": {"clipnorm": 1, "clipvalue": 1}}},
            "optimizer.sgd",
            {"reason": "clipped twice, by clipnorm and clipvalue"},
        ),
        (
            {"optimizer": {"type": "adamw", "adamw": {"clipnorm": 1}}},
            "optimizer.adamw.gradient_clip_norm",
            {"received": 1.0, "reason": "clipped twice"},
        ),
        (
            {"optimizer": {"type": "adamw", "adamw": {"exclude_from_weight_decay": ["("]}}},
            "optimizer.adamw.exclude_from_weight_decay",
            {"received": "(", "reason": "is not a regular expression"},
        ),
    ],
)
def test_invalid_configurations_are_reported(parts: dict[str, Any], key: str, fields: dict[str, Any]):
    with raises_problem(key=f"trainer.optimizer_config.{key}", **fields):
        build(OptimizationConfig(parts))


def test_all_that_is_missing_is_reported_at_once():
    with pytest.raises(UsageError) as error:
        build(OptimizationConfig({"learning_rate": {"type": "cosine"}}))
    cosine = "trainer.optimizer_config.learning_rate.cosine"
    missing = [(f"{cosine}.initial_learning_rate", "is required"), (f"{cosine}.decay_steps", "is required")]
    assert [(problem.key, problem.reason) for problem in error.value.problems] == missing
