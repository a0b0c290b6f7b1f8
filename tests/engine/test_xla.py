"""`runtime.xla_preset` and `runtime.deterministic`: options of the compiled steps."""

import json
import typing

import keras
import numpy as np
import pytest

import everstep as es
from everstep.data.config import DataConfig
from everstep.engine import backend, xla
from everstep.errors import UsageError

pytestmark = [pytest.mark.backend, pytest.mark.gpu]

IS_JAX = keras.backend.backend() == "jax"


def test_every_preset_is_a_value_of_the_key():
    values = typing.get_args(typing.get_type_hints(es.RuntimeConfig)["xla_preset"])
    assert list(values) == list(xla.PRESETS)


def test_no_preset_touches_determinism():
    named = {option for options in xla.PRESETS.values() for option in options}
    assert not [option for option in named if "determin" in option]


@pytest.mark.parametrize("preset", [name for name in xla.PRESETS if name != "none"])
def test_this_xla_knows_every_option(preset):
    if IS_JAX:
        assert xla.compiler_options(preset) == xla.PRESETS[preset]
        return
    with pytest.raises(UsageError) as caught:
        xla.compiler_options(preset)
    assert (caught.value.key, caught.value.received) == ("runtime.xla_preset", preset)


@pytest.mark.skipif(not IS_JAX, reason="only JAX has options")
def test_an_option_that_this_xla_does_not_know_is_refused(monkeypatch):
    monkeypatch.setitem(xla.PRESETS, "none", {"xla_gpu_from_another_version": True})
    with pytest.raises(UsageError) as caught:
        xla.compiler_options("none")
    assert "xla_gpu_from_another_version" in caught.value.reason


@pytest.mark.parametrize("deterministic", [True, False])
def test_deterministic_operations_can_be_turned_off(deterministic):
    backend.prepare(0, deterministic)
    try:
        if IS_JAX:
            from everstep.engine.certified import options_of

            assert options_of(deterministic)["xla_gpu_deterministic_ops"] == deterministic
        elif keras.backend.backend() == "torch":
            import torch

            assert torch.are_deterministic_algorithms_enabled() == deterministic
        else:
            from tensorflow.python.framework import config

            assert config.is_op_determinism_enabled() == deterministic
    finally:
        backend.prepare(0)


class Line(es.Task):
    def build_model(self):
        return keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])

    def build_inputs(self, params, input_context=None):
        x = np.random.default_rng(0).normal(size=(8, 2)).astype("float32")
        return x, x.sum(axis=1, keepdims=True)

    def build_losses(self, labels, model_outputs, aux_losses=None):
        return keras.ops.mean((labels - model_outputs) ** 2)


def test_recorded_with_the_run(tmp_path, caplog):
    task = es.TaskConfig(train_data=DataConfig(global_batch_size=4))
    runtime = es.RuntimeConfig(deterministic=False, xla_preset="latency" if IS_JAX else "none")
    params = es.ExperimentConfig(task=task, trainer=es.TrainerConfig(train_steps=2), runtime=runtime)
    try:
        es.run_experiment(Line(task), params, tmp_path / "run", "train", export=False, verbose=False)
    finally:
        backend.prepare(0)
    engine = json.loads((tmp_path / "run" / "run.json").read_text())["environment"]["engine"]
    assert engine["deterministic"] is False
    assert "deterministic=false" in caplog.text
    if IS_JAX:
        assert engine["compiler_options"]["xla_gpu_enable_latency_hiding_scheduler"] is True


def test_a_run_that_required_determinism_resumes_with_the_default(tmp_path):
    def trained(steps, deterministic):
        task = es.TaskConfig(train_data=DataConfig(global_batch_size=4))
        trainer = es.TrainerConfig(train_steps=steps)
        runtime = es.RuntimeConfig(deterministic=deterministic)
        params = es.ExperimentConfig(task=task, trainer=trainer, runtime=runtime)
        es.run_experiment(Line(task), params, tmp_path / "run", "train", export=False, verbose=False)
        return json.loads((tmp_path / "run" / "run.json").read_text())["step"]

    try:
        assert trained(2, True) == 2
        assert trained(4, "auto") == 4
        with pytest.raises(UsageError) as caught:
            trained(6, False)
    finally:
        backend.prepare(0)
    assert "runtime.deterministic" in [problem.key for problem in caught.value.problems]
