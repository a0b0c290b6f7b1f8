"""`runtime.float8`: dense layers multiply in float8, and their scales are part of the state of a run."""

import json

import keras
import numpy as np
import pytest
from keras import layers, ops

import everstep as es
from everstep.data.config import DataConfig
from everstep.engine.model_settings import use_float8
from everstep.errors import UsageError

pytestmark = pytest.mark.backend

IS_JAX = keras.backend.backend() == "jax"


def model():
    return keras.Sequential([keras.Input((16,)), layers.Dense(16, "relu"), layers.Dense(1)])


class Sums(es.Task):
    def build_model(self):
        return model()

    def build_inputs(self, params, input_context=None):
        x = np.random.default_rng(0).normal(size=(64, 16)).astype("float32")
        return x, x.sum(axis=1, keepdims=True)

    def build_losses(self, labels, model_outputs, aux_losses=None):
        return ops.mean((labels - model_outputs) ** 2)


def run(directory, steps, **options):
    data = DataConfig(global_batch_size=16)
    task = es.TaskConfig(train_data=data, validation_data=data)
    trainer = es.TrainerConfig(train_steps=steps, steps_per_loop=10, validation_interval=20, checkpoint_interval=10)
    params = es.ExperimentConfig(task=task, trainer=trainer, runtime=es.RuntimeConfig(float8=True))
    trained, logs = es.run_experiment(Sums(task), params, directory, verbose=False, **options)
    return {v.path: ops.convert_to_numpy(v) for v in trained.variables}, logs


@pytest.mark.skipif(not IS_JAX, reason="refused on other backends")
@pytest.mark.full
def test_scales_are_learned_saved_and_resumed(tmp_path):
    whole, logs = run(tmp_path / "whole", 20)
    assert np.isfinite(logs["validation_loss"])
    scales = [value for path, value in whole.items() if path.endswith("inputs_scale")]
    assert len(scales) == 2
    assert all(value != 1 for value in scales)
    run(tmp_path / "parts", 10, export=False)
    parts, _ = run(tmp_path / "parts", 20, export=False)
    for one, other in zip(whole.values(), parts.values(), strict=True):
        np.testing.assert_array_equal(one, other)
    record = json.loads((tmp_path / "whole" / "run.json").read_text())
    assert len(record["environment"]["engine"]["float8"]) == 2
    assert (tmp_path / "whole" / "export" / "model.keras").is_file()


@pytest.mark.skipif(IS_JAX, reason="supported on JAX")
def test_refused_where_no_kernel_uses_it():
    with pytest.raises(UsageError) as caught:
        use_float8(model())
    assert (caught.value.key, caught.value.received) == ("runtime.float8", True)


@pytest.mark.skipif(not IS_JAX, reason="refused on other backends")
def test_a_model_without_dense_layers_is_refused():
    with pytest.raises(UsageError) as caught:
        use_float8(keras.Sequential([keras.Input((2,)), layers.LayerNormalization()]))
    assert "no Dense" in caught.value.reason
