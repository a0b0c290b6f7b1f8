"""Values of `runtime` that are refused before anything is loaded: invalid ones, and those without effect."""

import math

import pytest

from everstep import ExperimentConfig
from everstep.errors import UsageError
from everstep.testing.problems import raises_problem


def validate(**runtime):
    config = ExperimentConfig()
    config.override({"runtime": runtime})
    config.validate()


@pytest.mark.parametrize(
    "runtime",
    [
        {"distribution_strategy": "OFF"},
        {"distribution_strategy": "One_Device", "num_gpus": 1},
        {"distribution_strategy": "Mirrored", "num_gpus": 4, "all_reduce_alg": "nccl", "tpu": ""},
        {"distribution_strategy": "tpu", "tpu": "local"},
        {"mixed_precision_dtype": "float16", "loss_scale": 128},
        {"mixed_precision_dtype": "bfloat16", "loss_scale": "dynamic"},
    ],
)
def test_accepted(runtime):
    validate(**runtime)


@pytest.mark.parametrize(
    ("runtime", "key", "received", "text"),
    [
        ({"num_gpus": -1}, "num_gpus", -1, "must be at least 0"),
        (
            {"num_gpus": 4},
            "num_gpus",
            4,
            "strategy is one_device: set distribution_strategy to mirrored, or remove num_gpus",
        ),
        ({"num_gpus": 2, "distribution_strategy": "off"}, "num_gpus", 2, "but distribution_strategy is off"),
        ({"num_gpus": 2, "distribution_strategy": "tpu"}, "num_gpus", 2, "but distribution_strategy is tpu"),
        ({"tpu": "mine"}, "tpu", "mine", "is one_device: set distribution_strategy to tpu, or remove tpu"),
        ({"all_reduce_alg": "nccl"}, "all_reduce_alg", "nccl", "set distribution_strategy to mirrored"),
        ({"loss_scale": 0}, "loss_scale", 0.0, "must be more than 0"),
        ({"loss_scale": 8}, "loss_scale", 8.0, "only with mixed_precision_dtype=float16"),
        ({"distribution_strategy": "mirored"}, "distribution_strategy", "mirored", "did you mean 'mirrored'"),
        ({"distribution_strategy": "multi_worker_mirrored", "tpu": "mine"}, "tpu", "mine", "is mirrored"),
        ({"distribution_strategy": "Parameter_Server"}, "distribution_strategy", "Parameter_Server", "asynchronously"),
    ],
)
def test_refused(runtime, key, received, text):
    with pytest.raises(UsageError) as caught:
        validate(**runtime)
    assert (caught.value.key, caught.value.received) == (f"runtime.{key}", received)
    assert text in f"{caught.value.reason}: {caught.value.remedy}"


def test_refused_loss_scale_that_is_not_a_number():
    with raises_problem(key="runtime.loss_scale", reason="must be more than 0") as error:
        validate(loss_scale=math.nan)
    assert math.isnan(error.value.received)


def test_all_problems_are_reported_together():
    with pytest.raises(UsageError) as caught:
        validate(seed=-1, num_gpus=4, tpu="mine")
    assert [problem.key for problem in caught.value.problems] == ["runtime.seed", "runtime.num_gpus", "runtime.tpu"]
    assert len(str(caught.value).splitlines()) == 3


def test_multi_worker_strategy_with_a_single_worker_is_accepted(monkeypatch):
    validate(distribution_strategy="multi_worker_mirrored", num_gpus=2)
    for cluster in ("{}", '{"cluster": {"worker": ["a:1"]}, "task": {"type": "worker", "index": 0}}'):
        monkeypatch.setenv("TF_CONFIG", cluster)
        validate(distribution_strategy="Multi_Worker_Mirrored")
    for cluster in ('{"cluster": {"worker": ["a:1", "b:1"]}}', '{"cluster": {"chief": ["a:1"], "worker": ["b:1"]}}'):
        monkeypatch.setenv("TF_CONFIG", cluster)
        with raises_problem(key="runtime.distribution_strategy", reason="TF_CONFIG names 2 workers"):
            validate(distribution_strategy="multi_worker_mirrored")
    monkeypatch.setenv("TF_CONFIG", "[")
    with raises_problem(
        key="runtime.distribution_strategy", received="multi_worker_mirrored", reason="TF_CONFIG is not a JSON object"
    ):
        validate(distribution_strategy="multi_worker_mirrored")
