"""Distribution strategies by name, and the errors for those that this machine does not support."""

from types import SimpleNamespace

import keras
import pytest

from everstep.engine.strategy import OneDevice, get_distribution_strategy
from everstep.errors import NOTHING, UsageError
from everstep.testing.problems import raises_problem

pytestmark = pytest.mark.backend


@pytest.mark.parametrize("name", ["off", "OFF", None, False])
def test_off_is_one_device(name):
    strategy = get_distribution_strategy(name)
    assert isinstance(strategy, OneDevice)
    with strategy.scope():
        assert keras.Variable([1.0]).shape == (1,)


@pytest.mark.parametrize("name", ["mirrored", "Mirrored"])
def test_mirrored_uses_the_devices_of_the_machine(name):
    strategy = get_distribution_strategy(name)
    assert strategy.num_replicas_in_sync >= 1
    with strategy.scope():
        assert keras.Variable([1.0]).shape == (1,)


@pytest.mark.parametrize(
    ("arguments", "key", "received", "text"),
    [
        ({"distribution_strategy": "mirored"}, "distribution_strategy", "mirored", "did you mean 'mirrored'"),
        ({"distribution_strategy": "parameter_server"}, "distribution_strategy", "parameter_server", "one of off"),
        ({"num_gpus": -1}, "num_gpus", -1, "at least 0"),
        ({"num_gpus": 64}, "num_gpus", 64, "this machine has"),
        ({"distribution_strategy": "one_device", "num_gpus": 2}, "distribution_strategy", "one_device", "mirrored"),
        ({"distribution_strategy": "off", "num_gpus": 2}, "distribution_strategy", "off", "mirrored"),
        ({"distribution_strategy": "tpu"}, "distribution_strategy", NOTHING, "there is no TPU on this machine"),
        ({"all_reduce_alg": "ring"}, "all_reduce_alg", "ring", ""),
    ],
)
def test_unsupported_strategies(arguments, key, received, text):
    with pytest.raises(UsageError) as caught:
        get_distribution_strategy(**arguments)
    assert (caught.value.key, caught.value.received) == (f"runtime.{key}", received)
    assert text in caught.value.reason + caught.value.remedy


def test_multi_worker_with_a_single_worker_is_mirrored(monkeypatch, caplog):
    assert type(get_distribution_strategy("multi_worker_mirrored")) is type(get_distribution_strategy("mirrored"))
    assert "multi_worker_mirrored has one worker, this machine" in caplog.text
    monkeypatch.setenv("TF_CONFIG", '{"cluster": {"worker": ["a:1", "b:1", "c:1"]}}')
    with raises_problem(
        key="runtime.distribution_strategy", received="multi_worker_mirrored", reason="TF_CONFIG names 3 workers"
    ):
        get_distribution_strategy("multi_worker_mirrored")


def test_several_processes_have_one_device_each(monkeypatch):
    if keras.backend.backend() == "jax":
        pytest.skip("one mesh over the devices of all processes")
    monkeypatch.setattr("everstep.engine.strategy.current_gang", lambda: SimpleNamespace(size=2))
    with raises_problem(
        key="runtime.distribution_strategy", received="mirrored", reason="2 processes train this run"
    ) as caught:
        get_distribution_strategy("mirrored")
    assert "multi_worker_mirrored" in caught.value.remedy
    assert get_distribution_strategy("multi_worker_mirrored").num_replicas_in_sync == 1


def test_a_tpu_that_cannot_be_reached():
    here = keras.backend.backend() != "tensorflow"
    key = "runtime.distribution_strategy" if here else "runtime.tpu"
    reason = "no TPU on this machine" if here else "the TPU cannot be reached"
    with raises_problem(key=key, reason=reason) as caught:
        get_distribution_strategy("tpu", tpu_address="mytpu")
    assert "\n" not in str(caught.value)


def test_torch_requires_an_explicit_choice_of_one_device(monkeypatch):
    if keras.backend.backend() != "torch":
        pytest.skip("the others share a batch among devices")
    monkeypatch.setattr("everstep.engine.device_names.devices", lambda: ["gpu:0", "gpu:1"])
    with raises_problem(key="runtime.distribution_strategy", reason="this machine has 2") as caught:
        get_distribution_strategy("mirrored")
    assert "everstep launch --processes 2" in caught.value.remedy
    assert isinstance(get_distribution_strategy("mirrored", num_gpus=1), OneDevice)
    assert isinstance(get_distribution_strategy("one_device"), OneDevice)


def test_runs_of_a_process_share_a_mirrored_strategy():
    if keras.backend.backend() != "tensorflow":
        pytest.skip("only TensorFlow numbers its collective operations")
    assert get_distribution_strategy("mirrored") is get_distribution_strategy("Mirrored", num_gpus=0)
