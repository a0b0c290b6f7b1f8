"""Registering optimizers."""

import copy
import dataclasses

import keras
import pytest

import everstep
from everstep.optim import ClippingConfig, OptimizationConfig, OptimizerConfig, register_optimizer
from everstep.task.optim import config as registry
from everstep.task.optim.building import build
from everstep.testing.problems import raises_problem


@dataclasses.dataclass
class LionConfig(ClippingConfig):
    """Settings of an optimizer that is not built in."""

    beta_1: float = 0.9
    """Decay of the mean of the gradients."""


def lion(learning_rate, beta_1, **clipping):
    return keras.optimizers.Lion(learning_rate, beta_1=beta_1, **clipping)


@pytest.fixture(autouse=True)
def _registered():
    register_optimizer("lion", LionConfig)(lion)


def test_a_registered_optimizer_is_selected_by_name():
    params = everstep.get_exp_config("mnist/mlp")
    params.override(
        {"trainer": {"optimizer_config": {"optimizer": {"type": "lion", "lion": {"beta_1": 0.5, "clipnorm": 2}}}}}
    )
    params.validate()
    optimizer = build(params.trainer.with_learning_rate_length().optimizer_config)
    assert isinstance(optimizer, keras.optimizers.Lion)
    assert (optimizer.beta_1, optimizer.clipnorm) == (0.5, 2.0)
    assert params.as_dict()["trainer"]["optimizer_config"]["optimizer"]["lion"]["beta_1"] == 0.5


def test_fields_of_a_registered_optimizer_are_checked():
    with raises_problem(key="optimizer.lion.beta_2", received=0.5, reason="unknown key"):
        OptimizationConfig({"optimizer": {"type": "lion", "lion": {"beta_2": 0.5}}})
    with raises_problem(key="trainer.optimizer_config.optimizer.lion.clipnorm", received=-1.0):
        build(OptimizationConfig({"optimizer": {"type": "lion", "lion": {"clipnorm": -1}}}))
    assert OptimizationConfig() == OptimizationConfig()
    assert isinstance(OptimizationConfig().optimizer, OptimizerConfig)


@pytest.mark.parametrize(
    "make",
    [
        lambda optimizer: OptimizationConfig(optimizer=optimizer),
        lambda optimizer: OptimizationConfig({"optimizer": optimizer}),
        lambda optimizer: OptimizationConfig(optimizer=OptimizerConfig(optimizer)),
        lambda optimizer: OptimizationConfig(optimizer=OptimizerConfig(type="lion", lion=optimizer["lion"])),
        lambda optimizer: OptimizationConfig().replace(optimizer=optimizer),
    ],
)
def test_every_way_to_create_a_config(make):
    config = make({"type": "lion", "lion": {"beta_1": 0.5}})
    config.validate()
    assert build(config).beta_1 == 0.5
    assert config == OptimizationConfig({"optimizer": {"type": "lion", "lion": {"beta_1": 0.5}}})
    assert copy.deepcopy(config) == config


def test_a_config_that_was_created_before_the_registration():
    registry._registered.clear()
    registry._extended.cache_clear()
    older = OptimizationConfig()
    hint = "registered with @register_optimizer before the config is created"
    with raises_problem(key="optimizer.type", received="lion", remedy=hint):
        older.override({"optimizer": {"type": "lion"}})
    with raises_problem(key="optimizer.lion", received={"beta_1": 0.5}, reason=hint):
        older.override({"optimizer": {"lion": {"beta_1": 0.5}}})
    register_optimizer("lion", LionConfig)(lion)
    with raises_problem(
        key="optimizer.type", received="lion", reason="unknown type", remedy="before the config is created"
    ):
        older.override({"optimizer": {"type": "lion"}})
    copied = older.replace(optimizer={"type": "lion"})  # created now
    assert isinstance(build(copied), keras.optimizers.Lion)


def test_a_name_is_registered_once():
    def other(learning_rate):
        return keras.optimizers.SGD(learning_rate)

    for name, message in (("adam", "built-in"), ("lion", "already registered by .*lion"), ("type", "built-in")):
        with raises_problem(key="@register_optimizer", reason=message):
            register_optimizer(name, LionConfig)(other)
    assert register_optimizer("lion", LionConfig)(lion) is lion  # the same definition again, as in a notebook


@pytest.mark.parametrize("name", ["a b", "_a"])
def test_invalid_names(name):
    with raises_problem(key="@register_optimizer", received=name, reason="is not a valid name"):
        register_optimizer(name, LionConfig)


@pytest.mark.parametrize("cls", [dict, None])
def test_what_is_no_config_class(cls):
    with raises_problem(key="@register_optimizer('fine', …)", received=cls, reason="expected a config class"):
        register_optimizer("fine", cls)


def test_a_function_that_returns_no_optimizer():
    @register_optimizer("nothing", ClippingConfig)
    def nothing(learning_rate, **clipping):
        return None

    with raises_problem(
        key="trainer.optimizer_config.optimizer.nothing",
        received=None,
        reason=r"must return a keras\.optimizers\.Optimizer",
    ):
        build(OptimizationConfig({"optimizer": {"type": "nothing"}}))
