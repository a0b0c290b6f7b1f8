"""Optimization config: Model Garden's names, and defaults that work."""

import pytest

from everstep.errors import UsageError
from everstep.optim import LrConfig, OptimizationConfig, OptimizerConfig, WarmupConfig


def test_the_default_works():
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
    }


def test_it_is_built_from_a_dict():
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


def test_model_gardens_defaults():
    adamw = OptimizerConfig().adamw
    assert (adamw.weight_decay_rate, adamw.gradient_clip_norm) == (0.0, 1.0)
    assert (adamw.include_in_weight_decay, adamw.exclude_from_weight_decay) == (None, None)
    assert LrConfig().polynomial.end_learning_rate == 1e-4
    assert WarmupConfig().polynomial.power == 1.0


def test_mistakes_have_their_path():
    with pytest.raises(UsageError, match=r"optimizer\.type: unknown type 'adma'; did you mean 'adam'"):
        OptimizationConfig({"optimizer": {"type": "adma"}})
    with pytest.raises(UsageError, match=r"learning_rate\.cosine\.decay_stpes: unknown key"):
        OptimizationConfig({"learning_rate": {"cosine": {"decay_stpes": 1}}})
