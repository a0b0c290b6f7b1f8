"""The sampler that draws the task of each step."""

import numpy as np
import pytest

from everstep.task.multitask.config import AnnealingConfig, ProportionalConfig, SamplerConfig, UniformConfig
from everstep.task.multitask.streams import TaskSampler


def sampler(config, weights=(8.0, 1.0), seed=0):
    return TaskSampler(weights, config.exponent, seed)


@pytest.mark.parametrize(
    ("config", "probabilities"),
    [
        (UniformConfig(), [1 / 2, 1 / 2]),
        (ProportionalConfig(), [8 / 9, 1 / 9]),
        (ProportionalConfig(alpha=0.0), [1 / 2, 1 / 2]),
        (ProportionalConfig(alpha=1 / 3), [2 / 3, 1 / 3]),
    ],
)
def test_probabilities(config, probabilities):
    np.testing.assert_allclose(sampler(config).probabilities(0), probabilities)
    np.testing.assert_allclose(sampler(config).probabilities(10**6), probabilities)


def test_annealing_moves_from_the_weights_towards_uniform():
    """Four epochs of five steps: alpha is 1, 0.73, 0.47 and 0.2, and then constant."""
    config = AnnealingConfig()
    exponents = [config.exponent(step) for step in (0, 4, 5, 10, 15, 19, 20, 10**6)]
    np.testing.assert_allclose(exponents, [1, 1, 11 / 15, 7 / 15, 0.2, 0.2, 0.2, 0.2])
    np.testing.assert_allclose(sampler(config).probabilities(0), [8 / 9, 1 / 9])
    np.testing.assert_allclose(sampler(config).probabilities(15), [8**0.2 / (8**0.2 + 1), 1 / (8**0.2 + 1)])


@pytest.mark.parametrize("config", [AnnealingConfig(steps_per_epoch=20), AnnealingConfig(steps_per_epoch=50)])
def test_annealing_over_a_single_epoch_ends_at_once(config):
    assert config.exponent(0) == pytest.approx(0.2)


def test_draws_depend_only_on_seed_and_step():
    straight = [sampler(UniformConfig()).draw(step) for step in range(3000)]
    one = sampler(UniformConfig())
    assert [one.draw(step) for step in reversed(range(3000))] == straight[::-1]
    assert [sampler(UniformConfig(), seed=1).draw(step) for step in range(3000)] != straight


def test_draws_follow_the_probabilities():
    drawn = [sampler(ProportionalConfig(), weights=(5.0, 3.0, 2.0)).draw(step) for step in range(0, 20_000, 2)]
    np.testing.assert_allclose(np.bincount(drawn) / len(drawn), [0.5, 0.3, 0.2], atol=0.02)


def test_large_weights_do_not_overflow():
    np.testing.assert_allclose(sampler(ProportionalConfig(alpha=3.0), (1e200, 5e199)).probabilities(0), [8 / 9, 1 / 9])


def test_unselected_samplers_keep_their_values():
    config = SamplerConfig({"annealing": {"total_steps": 40}})
    assert config.get() == ProportionalConfig()
    config.override({"type": "annealing"})
    assert config.get() == AnnealingConfig(total_steps=40)
