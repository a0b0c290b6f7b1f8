"""Optimization config: Model Garden's names, and defaults that work."""

from typing import Any

import numpy as np
import pytest

from everstep.errors import UsageError
from everstep.optim import LrConfig, OptimizationConfig, OptimizerConfig, WarmupConfig
from everstep.testing.problems import raises_problem

INITIAL = {"initial_learning_rate": 1.0}


def test_defaults():
    assert OptimizationConfig().as_dict() == {
        "optimizer": {
            "type": "adam",
            "adam": {
                "clipnorm": None,
                "clipvalue": None,
                "global_clipnorm": None,
                "beta_1": 0.9,
                "beta_2": 0.999,
                "epsilon": 1e-7,
                "amsgrad": False,
            },
        },
        "learning_rate": {"type": "constant", "constant": {"learning_rate": 1e-3}},
        "warmup": {"type": None},
        "layer_rates": None,
        "ema": None,
        "gradient_accumulation_steps": 1,
    }


@pytest.mark.parametrize("number", [0.05, 1, np.float32(0.25)])
def test_a_number_is_a_constant_learning_rate(number: float):
    expected = {"type": "constant", "constant": {"learning_rate": float(number)}}
    assert OptimizationConfig({"learning_rate": number}).learning_rate.as_dict() == expected
    config = OptimizationConfig({"learning_rate": {"type": "cosine", "cosine": {**INITIAL, "decay_steps": 9}}})
    config.override({"learning_rate": number})
    assert config.learning_rate.as_dict() == expected
    config.learning_rate = number  # type: ignore[assignment]
    assert config.learning_rate.as_dict() == expected
    with raises_problem(key="learning_rate.constant.learning_rate", received=-1.0):
        OptimizationConfig({"learning_rate": -1}).validate()
    with raises_problem(key="learning_rate", received=True, reason="expected a number or LrConfig"):
        OptimizationConfig({"learning_rate": True})


def test_from_a_dict():
    config = OptimizationConfig(
        {
            "optimizer": {"type": "sgd", "sgd": {"momentum": 0.9}},
            "learning_rate": {"type": "stepwise", "stepwise": {"boundaries": [10], "values": [1, 0.1]}},
            "warmup": {"type": "linear", "linear": {"warmup_steps": 5}},
        }
    )
    assert config.optimizer.get().momentum == 0.9
    assert config.learning_rate.get().values == [1.0, 0.1]
    assert config.warmup.get().warmup_steps == 5


def test_defaults_of_model_garden():
    adamw = OptimizerConfig().adamw
    assert (adamw.weight_decay_rate, adamw.gradient_clip_norm) == (0.0, 1.0)
    assert (adamw.include_in_weight_decay, adamw.exclude_from_weight_decay) == (None, None)
    assert LrConfig().polynomial.end_learning_rate == 1e-4
    assert WarmupConfig().polynomial.power == 1.0
    clipping = {"clipnorm": None, "clipvalue": None, "global_clipnorm": None}
    excluded = {"exclude_from_weight_decay": None, "exclude_from_layer_adaptation": None}
    assert OptimizerConfig().lamb.as_dict() == {
        **clipping,
        **{"beta_1": 0.9, "beta_2": 0.999, "epsilon": 1e-6, "weight_decay_rate": 0.0},
        **excluded,
    }
    assert OptimizerConfig().lars.as_dict() == {
        **clipping,
        **{"momentum": 0.9, "eeta": 0.001, "weight_decay_rate": 0.0, "nesterov": False, "classic_momentum": True},
        **excluded,
    }
    assert OptimizerConfig().adagrad.as_dict() == {**clipping, "initial_accumulator_value": 0.1, "epsilon": 1e-7}
    assert OptimizerConfig().adafactor.as_dict() == {
        **clipping,
        **{"beta_2_decay": -0.8, "epsilon_1": 1e-30, "epsilon_2": 1e-3, "clip_threshold": 1.0, "relative_step": True},
    }
    assert OptimizationConfig({"ema": {}}).ema.as_dict() == {
        "trainable_weights_only": True,
        "average_decay": 0.99,
        "start_step": 0,
        "dynamic_decay": True,
    }
    assert LrConfig().power_with_offset.as_dict() == {
        "initial_learning_rate": None,
        "power": -0.5,
        "offset": 0,
        "pre_offset_learning_rate": 1e6,
    }


def test_errors_have_the_key_path():
    with raises_problem(key="optimizer.type", received="adma", reason="unknown type", remedy="did you mean 'adam'"):
        OptimizationConfig({"optimizer": {"type": "adma"}})
    with raises_problem(key="learning_rate.cosine.decay_stpes", received=1, reason="unknown key"):
        OptimizationConfig({"learning_rate": {"cosine": {"decay_stpes": 1}}})


@pytest.mark.parametrize(
    ("type_", "answer"),
    [
        ("sgd_experimental", "is 'sgd' here"),
        ("adam_experimental", "is 'adam' here"),
        ("adamw_experimental", "is 'adamw' here, with weight_decay_rate and gradient_clip_norm"),
        ("adafactor_keras", "is 'adafactor' here"),
        ("slide", "has never been published"),
    ],
)
def test_other_names_of_model_garden_are_explained(type_: str, answer: str):
    with pytest.raises(UsageError) as error:
        OptimizationConfig({"optimizer": {"type": type_, type_: {"clipnorm": 1}}})
    lines = str(error.value).splitlines()
    assert [line.partition(":")[0] for line in lines] == ["optimizer.type", f"optimizer.{type_}"]
    assert all(answer in line for line in lines)


REQUIRED = {
    "stepwise": ["boundaries", "values"],
    "exponential": ["initial_learning_rate", "decay_steps", "decay_rate"],
    "polynomial": ["initial_learning_rate"],
    "cosine": ["initial_learning_rate"],
    "cosine_restarts": ["initial_learning_rate", "first_decay_steps"],
    "power": ["initial_learning_rate"],
    "power_linear": ["initial_learning_rate"],
    "power_with_offset": ["initial_learning_rate"],
    "step_cosine_with_offset": ["boundaries", "values"],
}


def wrong(**parts: Any) -> list[str]:
    """Returns the problems of a configuration as text, one per line."""
    with pytest.raises(UsageError) as error:
        OptimizationConfig(parts).validate()
    return str(error.value).splitlines()


@pytest.mark.parametrize("type_", REQUIRED)
def test_required_fields_of_schedules(type_: str):
    expected = [f"learning_rate.{type_}.{name}: is required" for name in REQUIRED[type_]]
    assert wrong(learning_rate={"type": type_}) == expected


def test_only_what_is_selected_is_checked():
    OptimizationConfig(
        {"optimizer": {"sgd": {"momentum": 7}}, "learning_rate": {"cosine": {"decay_steps": -3}}}
    ).validate()


@pytest.mark.parametrize(
    ("parts", "line"),
    [
        (
            {"type": "step_cosine_with_offset", "step_cosine_with_offset": {"boundaries": [5, 9], "values": [1]}},
            "learning_rate.step_cosine_with_offset.values: received [1.0], "
            "must be as many as the 2 boundaries, or one more, not 1",
        ),
        (
            {"type": "step_cosine_with_offset", "step_cosine_with_offset": {"boundaries": [9, 5], "values": [1, 2]}},
            "learning_rate.step_cosine_with_offset.boundaries: received [9, 5], "
            "must be steps from 0 on in increasing order",
        ),
        (
            {"type": "step_cosine_with_offset", "step_cosine_with_offset": {"boundaries": [0], "values": [1]}},
            "learning_rate.step_cosine_with_offset.boundaries: received [0], "
            "must have a step after 0, at which an interval ends",
        ),
        (
            {"type": "step_cosine_with_offset", "step_cosine_with_offset": {"boundaries": [0, 9], "values": [1, 2, 3]}},
            "learning_rate.step_cosine_with_offset.values: received [1.0, 2.0, 3.0], "
            "must be as many as the 1 boundaries after 0, or one more, not 3",
        ),
        (
            {"type": "cosine_restarts", "cosine_restarts": {**INITIAL, "first_decay_steps": 5, "t_mul": 0.5}},
            "learning_rate.cosine_restarts.t_mul: received 0.5, "
            "must be 1 (all cosines are equally long) or at least 1.001",
        ),
        (
            {"type": "power_linear", "power_linear": {**INITIAL, "total_decay_steps": 5, "linear_decay_fraction": 0}},
            "learning_rate.power_linear.linear_decay_fraction: received 0.0, "
            "must be more than 0: for a rate without an end use the type power_with_offset",
        ),
        (
            {"type": "power_linear", "power_linear": {**INITIAL, "total_decay_steps": 5, "linear_decay_fraction": 2}},
            "learning_rate.power_linear.linear_decay_fraction: received 2.0, must be at most 1",
        ),
    ],
)
def test_invalid_schedules(parts: dict[str, Any], line: str):
    assert wrong(learning_rate=parts) == [line]


@pytest.mark.parametrize(
    ("type_", "fields", "line"),
    [
        (
            "lamb",
            {"exclude_from_layer_adaptation": ["("]},
            "exclude_from_layer_adaptation: received '(', is not a regular expression",
        ),
        ("lamb", {"beta_2": 1.5}, "beta_2: received 1.5, must be from 0 to below 1"),
        ("adam", {"beta_1": 1}, "beta_1: received 1.0, must be from 0 to below 1"),
        ("sgd", {"momentum": 1}, "momentum: received 1.0, must be from 0 to below 1"),
        ("rmsprop", {"rho": -0.1}, "rho: received -0.1, must be from 0 to below 1"),
        ("adafactor", {"epsilon_1": 0}, "epsilon_1: received 0.0, must be more than 0"),
        ("lars", {"eeta": 0}, "eeta: received 0.0, must be more than 0"),
        ("lars", {"weight_decay_rate": -1}, "weight_decay_rate: received -1.0, must be at least 0"),
        ("adafactor", {"beta_2_decay": 0.8}, "beta_2_decay: received 0.8, must be less than 0"),
        ("adagrad", {"clipvalue": 0}, "clipvalue: received 0.0, must be more than 0"),
        ("muon", {"ns_steps": 0}, "ns_steps: received 0, must be more than 0"),
        ("muon", {"exclude_layers": "("}, "exclude_layers: received '(', is not a regular expression"),
    ],
)
def test_invalid_optimizers(type_: str, fields: dict[str, Any], line: str):
    assert wrong(optimizer={"type": type_, type_: fields})[0].startswith(f"optimizer.{type_}.{line}")


NEGATIVE: list[Any] = [
    ("constant", "learning_rate", {}),
    ("exponential", "initial_learning_rate", {"decay_steps": 5, "decay_rate": 0.5}),
    ("polynomial", "initial_learning_rate", {"decay_steps": 5}),
    ("polynomial", "end_learning_rate", {**INITIAL, "decay_steps": 5}),
    ("cosine", "initial_learning_rate", {"decay_steps": 5}),
    ("cosine_restarts", "initial_learning_rate", {"first_decay_steps": 5}),
    ("power", "initial_learning_rate", {}),
    ("power_linear", "initial_learning_rate", {"total_decay_steps": 5}),
    ("power_with_offset", "pre_offset_learning_rate", INITIAL),
]


@pytest.mark.parametrize("value", [-0.1, float("inf"), float("nan")])
@pytest.mark.parametrize(("type_", "name", "fields"), NEGATIVE)
def test_invalid_learning_rates(type_: str, name: str, fields: dict[str, Any], value: float):
    line = f"learning_rate.{type_}.{name}: received {value}, must be at least 0, and finite"
    assert wrong(learning_rate={"type": type_, type_: {**fields, name: value}}) == [line]


def test_one_invalid_rate_in_a_list():
    rule = "a learning rate must be finite and not negative"
    for type_, values in (("stepwise", [1.0, -1.0]), ("step_cosine_with_offset", [-1.0])):
        lines = wrong(learning_rate={"type": type_, type_: {"boundaries": [5], "values": values}})
        assert lines == [f"learning_rate.{type_}.values: received {values}, {rule}"]
    lines = wrong(warmup={"type": "linear", "linear": {"warmup_steps": 5, "warmup_learning_rate": -1}})
    assert lines == ["warmup.linear.warmup_learning_rate: received -1.0, must be at least 0, and finite"]


def test_averages_that_never_change():
    lines = wrong(ema={"average_decay": 1, "dynamic_decay": False})
    assert lines == ["ema.average_decay: received 1.0, must be from 0 to below 1"]
    OptimizationConfig({"ema": {"average_decay": 1}}).validate()  # a dynamic decay is always less than 1


@pytest.mark.parametrize(
    ("type_", "field"),
    [("cosine", "decay_steps"), ("polynomial", "decay_steps"), ("power_linear", "total_decay_steps")],
)
def test_a_schedule_without_a_length_is_as_long_as_training(type_: str, field: str):
    config = OptimizationConfig({"learning_rate": {"type": type_, type_: {"initial_learning_rate": 0.1, "offset": 20}}})
    config.validate()
    assert config.unset_lengths == [f"learning_rate.{type_}.{field}"]
    filled = config.with_length(100)
    assert getattr(filled.learning_rate.get(), field) == 80, "the schedule ends at step 100"
    assert config.unset_lengths, "the original config is unchanged"
    assert not filled.unset_lengths
    assert filled.with_length(7) is filled
    assert not OptimizationConfig().unset_lengths


@pytest.mark.parametrize(("share", "steps"), [(0.05, 50), (0.0004, 1), (0, 0), (1, 1000)])
@pytest.mark.parametrize("type_", ["linear", "polynomial"])
def test_a_warmup_may_be_a_share_of_training(type_: str, share: float, steps: int):
    config = OptimizationConfig({"warmup": {"type": type_, type_: {"warmup_share": share}}})
    config.validate()
    assert config.unset_lengths == [f"warmup.{type_}.warmup_steps"]
    warmup = config.with_length(1000).warmup.get()
    assert (warmup.warmup_steps, warmup.warmup_share) == (steps, None)


def test_a_share_gives_way_to_steps_and_steps_to_a_share():
    warmup = OptimizationConfig({"warmup": {"type": "linear", "linear": {"warmup_share": 0.1}}})
    steps = warmup.replace(warmup={"linear": {"warmup_steps": 7}})
    assert not steps.unset_lengths
    assert steps.with_length(1000).warmup.get().warmup_steps == 7
    again = steps.replace(warmup={"linear": {"warmup_share": 0.2}})
    assert again.with_length(1000).warmup.get().warmup_steps == 200


def test_warmups_without_a_valid_length_are_refused():
    def of(**fields):
        return wrong(warmup={"type": "linear", "linear": fields})

    assert of() == ["warmup.linear.warmup_steps: is required: set it, or warmup_share"]
    assert of(warmup_share=10) == ["warmup.linear.warmup_share: received 10.0, must be from 0 to 1"]
    assert of(warmup_share=-0.1) == ["warmup.linear.warmup_share: received -0.1, must be from 0 to 1"]
    assert "they are alternatives" in of(warmup_share=0.1, warmup_steps=5)[0]


def test_rates_by_layer_that_cannot_be_used_are_refused():
    def of(**fields):
        return wrong(layer_rates=fields)

    assert of() == ["layer_rates: changes nothing: set factors or decay"]
    assert of(factors={"bias": 0}) == [
        "layer_rates.factors: received {'bias': 0.0}, must be more than 0, and finite: "
        "freeze variables that should not be trained"
    ]
    assert len(of(factors={"bias": -1, "kernel": float("inf")})) == 2
    assert of(factors={"(": 2})[0].startswith("layer_rates.factors: received '(', is not a regular expression")
    for decay in (0, -0.5, 1.1):
        assert of(decay=decay) == [f"layer_rates.decay: received {float(decay)}, must be more than 0, and at most 1"]
    assert of(decay=0.9, blocks="layer_[0-9]+")[0].startswith("layer_rates.blocks: received 'layer_[0-9]+', has no")
    assert of(factors={"bias": 2}, blocks="(a)")[0].startswith("layer_rates.blocks: received '(a)', is used by decay")


@pytest.mark.parametrize(("warmup_steps", "key"), [(99, None), (100, "warmup.linear.warmup_steps")])
def test_a_warmup_as_long_as_the_schedule_is_found(warmup_steps: int, key: str | None):
    rate = {"type": "cosine", "cosine": {"initial_learning_rate": 0.1, "offset": 20}}
    warmup = {"type": "linear", "linear": {"warmup_steps": warmup_steps}}
    config = OptimizationConfig({"learning_rate": rate, "warmup": warmup})
    assert config.late_warmup is None, "the length of the schedule is not known yet"
    assert config.with_length(100).late_warmup == key
    assert config.replace(learning_rate={"type": "constant"}).late_warmup is None
