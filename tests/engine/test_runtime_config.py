"""What `runtime` refuses before anything is loaded: values that cannot be, and values that nobody would read."""

import pytest

from everstep import ExperimentConfig
from everstep.errors import UsageError


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
    ("runtime", "message"),
    [
        ({"num_gpus": -1}, r"^runtime.num_gpus: received -1, must be at least 0"),
        (
            {"num_gpus": 4},
            "^runtime.num_gpus: received 4, but distribution_strategy is one_device: set that to mir",
        ),
        ({"num_gpus": 2, "distribution_strategy": "off"}, "runtime.num_gpus: received 2, but .* is off"),
        ({"num_gpus": 2, "distribution_strategy": "tpu"}, "runtime.num_gpus: received 2, but .* is tpu"),
        ({"tpu": "mine"}, "^runtime.tpu: received 'mine', but .* is one_device: set that to tpu"),
        ({"all_reduce_alg": "nccl"}, "^runtime.all_reduce_alg: received 'nccl', but .* set that to mirrored"),
        ({"loss_scale": 0}, "^runtime.loss_scale: received 0.0, must be more than 0"),
        ({"loss_scale": float("nan")}, "^runtime.loss_scale: received nan, must be more than 0"),
        ({"loss_scale": 8}, "^runtime.loss_scale: received 8.0, but .*mixed_precision_dtype=float16"),
        ({"distribution_strategy": "mirored"}, "^runtime.distribution_strategy: .* did you mean 'mirrored'"),
        ({"distribution_strategy": "multi_worker_mirrored", "tpu": "mine"}, "^runtime.tpu: .* is mirrored"),
        ({"distribution_strategy": "Parameter_Server"}, "^runtime.distribution_strategy: .* is for parameter servers"),
    ],
)
def test_refused(runtime, message):
    with pytest.raises(UsageError, match=message):
        validate(**runtime)


def test_all_that_is_wrong_at_once():
    with pytest.raises(UsageError) as caught:
        validate(seed=-1, num_gpus=4, tpu="mine")
    assert [line.partition(":")[0] for line in str(caught.value).splitlines()] == [
        "runtime.seed",
        "runtime.num_gpus",
        "runtime.tpu",
    ]


def test_a_strategy_for_several_machines_is_for_one_of_a_single_worker(monkeypatch):
    validate(distribution_strategy="multi_worker_mirrored", num_gpus=2)
    for cluster in ("{}", '{"cluster": {"worker": ["a:1"]}, "task": {"type": "worker", "index": 0}}'):
        monkeypatch.setenv("TF_CONFIG", cluster)
        validate(distribution_strategy="Multi_Worker_Mirrored")
    for cluster in ('{"cluster": {"worker": ["a:1", "b:1"]}}', '{"cluster": {"chief": ["a:1"], "worker": ["b:1"]}}'):
        monkeypatch.setenv("TF_CONFIG", cluster)
        message = "^runtime.distribution_strategy: .* is for several machines .* TF_CONFIG names 2 workers"
        with pytest.raises(UsageError, match=message):
            validate(distribution_strategy="multi_worker_mirrored")
    monkeypatch.setenv("TF_CONFIG", "[")
    with pytest.raises(UsageError, match="TF_CONFIG, which is no JSON object"):
        validate(distribution_strategy="multi_worker_mirrored")
