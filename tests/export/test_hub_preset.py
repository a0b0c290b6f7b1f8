"""Exports of KerasHub models: preset, adapters, Transformers; each writes what the live model writes."""

import json
import os
import subprocess
import sys

import keras
import numpy as np
import pytest

from everstep.engine.hub import adapted_layers, greedy, keras_hub
from everstep.engine.late_tensorflow import not_found
from everstep.export.dequantized import exact_inputs, quantized_layers, without_quantization
from everstep.export.hub_preset import export_adapter, export_preset, export_transformers
from everstep.export.keras_file import export_keras
from everstep.export.model_export import export_all
from everstep.export.saved_model import export_saved_model
from everstep.recipes.hub.config import HubTaskConfig, LoraConfig
from everstep.recipes.hub.training_parts import choose_trained
from everstep.testing.problems import raises_problem

pytestmark = pytest.mark.backend

TARGETS = ["query", "value", "attention_output"]
PROMPTS = [[10, 20, 30, 40], [50, 60, 70, 80]]


def load(preset):
    with not_found():
        return keras_hub().models.CausalLM.from_preset(preset)


def written(model):
    return greedy(model, PROMPTS, 24, 20, None)


@pytest.fixture(scope="module")
def tuned(tiny_preset):
    """A model with adapters that change what it writes, and inputs for it."""
    preset = tiny_preset("causal_lm", "gpt2")
    model = load(preset)
    before = written(model)
    choose_trained(model, HubTaskConfig(preset=preset, lora=LoraConfig(rank=2, alpha=6.0, targets=TARGETS)))
    random = np.random.default_rng(3)
    for variable in model.trainable_variables:
        variable.assign(random.normal(size=variable.shape).astype("float32"))
    tokens = random.integers(1, 300, (2, 24)).astype("int32")
    assert written(model) != before
    return preset, model, {"token_ids": tokens, "padding_mask": np.ones_like(tokens)}


@pytest.mark.daily("torch")
def test_a_merged_preset_writes_the_same_text(tuned, tmp_path):
    _, model, sample = tuned
    export_preset(model, tmp_path / "preset", sample)
    loaded = load(str(tmp_path / "preset"))
    assert not adapted_layers(loaded)
    assert written(loaded) == written(model)
    assert loaded.preprocessor.tokenizer.vocabulary_size() == loaded.backbone.vocabulary_size


@pytest.mark.daily("torch")
def test_an_adapter_is_loaded_by_keras_hub_onto_the_preset(tuned, tmp_path):
    preset, model, sample = tuned
    kernels = [np.array(keras.ops.convert_to_numpy(variable)) for variable in model.variables]
    export_adapter(model, tmp_path / "adapter.lora.h5", sample)
    fresh = load(preset)
    fresh.backbone.enable_lora(2, target_layer_names=TARGETS)
    fresh.backbone.load_lora_weights(str(tmp_path / "adapter.lora.h5"))
    assert written(fresh) == written(model)
    after = [keras.ops.convert_to_numpy(variable) for variable in model.variables]
    assert all(map(np.array_equal, kernels, after))  # the live model is as it was, alpha included
    assert {layer.lora_alpha for layer in adapted_layers(model)} == {6.0}


@pytest.mark.daily("torch")
def test_a_keras_file_writes_the_same_text(tuned, tmp_path):
    _, model, sample = tuned
    export_keras(model, tmp_path / "model.keras", sample)
    with not_found():
        loaded = keras.saving.load_model(tmp_path / "model.keras", compile=False)
    assert written(loaded) == written(model)


@pytest.mark.full
def test_a_saved_model_has_the_outputs(tuned, tmp_path, caplog):
    if keras.backend.backend() == "torch":
        pytest.skip("PyTorch writes model.pt2 instead")
    _, model, sample = tuned
    export_saved_model(model, tmp_path / "saved_model", sample)  # compares them
    one_length = [record for record in caplog.records if "one length" in record.message]
    assert bool(one_length) == (keras.backend.backend() == "jax")  # its position embedding compares lengths
    assert (tmp_path / "saved_model" / "saved_model.pb").is_file()


@pytest.mark.full
def test_transformers_writes_the_same_text(tuned, tmp_path):
    _, model, sample = tuned
    export_preset(model, tmp_path / "preset", sample)
    export_transformers(model, tmp_path / "transformers", sample, preset=tmp_path / "preset")
    assert _by_transformers(tmp_path / "transformers") == [
        prompt + text for prompt, text in zip(PROMPTS, written(model), strict=True)
    ]


def _by_transformers(folder):
    """Returns the tokens that Hugging Face's library writes, in a process of its own: it needs PyTorch."""
    code = f"""
import json, torch, transformers
model = transformers.AutoModelForCausalLM.from_pretrained({str(folder)!r})
tokens = torch.tensor({PROMPTS})
found = model.generate(tokens, do_sample=False, max_length=24, eos_token_id=None, pad_token_id=0,
                       attention_mask=torch.ones_like(tokens))
print(json.dumps(found.tolist()))
"""
    env = {**os.environ, "HF_HUB_OFFLINE": "1"}
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.daily("torch")
def test_adapters_alone_are_not_written_if_more_was_trained(tiny_preset, tmp_path):
    preset = tiny_preset("causal_lm", "gpt2")
    model = load(preset)
    choose_trained(model, HubTaskConfig(preset=preset, lora=LoraConfig(rank=2)))
    model.backbone.layer_norm.trainable = True
    sample = {"token_ids": np.ones((1, 8), "int32"), "padding_mask": np.ones((1, 8), "int32")}
    with raises_problem(reason="layer_norm"):
        export_adapter(model, tmp_path / "adapter.lora.h5", sample)
    assert not list(tmp_path.iterdir())


@pytest.mark.daily("torch")
@pytest.mark.parametrize("mode", ["int8", pytest.param("int4", marks=pytest.mark.full)])
def test_a_quantized_model_is_merged_in_floating_point(mode, tiny_preset, tmp_path, caplog):
    """What is loaded writes the text of the live model, which for int8 does not round its inputs meanwhile."""
    preset = tiny_preset("causal_lm", "gpt2")
    model = load(preset)
    choose_trained(model, HubTaskConfig(preset=preset, quantize=mode, lora=LoraConfig(rank=2, alpha=6.0)))
    random = np.random.default_rng(3)
    for variable in model.trainable_variables:
        variable.assign(random.normal(scale=0.3, size=variable.shape).astype("float32"))
    tokens = random.integers(1, 300, (2, 24)).astype("int32")
    sample = {"token_ids": tokens, "padding_mask": np.ones_like(tokens)}
    merged = without_quantization(model, sample)
    assert not quantized_layers(merged)
    assert not adapted_layers(merged)
    assert ("do not round" in caplog.text) == (mode == "int8")
    export_preset(merged, tmp_path / "preset", sample)
    loaded = load(str(tmp_path / "preset"))
    layers = quantized_layers(model)
    with exact_inputs(layers):
        assert written(loaded) == written(model)
    assert [bool(layer.inputs_quantizer) for layer in layers] == [mode == "int8"] * len(layers)


@pytest.mark.full
@pytest.mark.filterwarnings("ignore:Skipping variable loading")  # Keras's, of a model that is not compiled
def test_every_format_of_a_quantized_run(tiny_preset, tmp_path):
    preset = tiny_preset("causal_lm", "gpt2")
    model = load(preset)
    choose_trained(model, HubTaskConfig(preset=preset, quantize="int8", lora=LoraConfig(rank=2)))
    tokens = np.random.default_rng(3).integers(1, 300, (2, 24)).astype("int32")
    paths = export_all(model, tmp_path, {"token_ids": tokens, "padding_mask": np.ones_like(tokens)})
    assert {"model.keras", "preset", "adapter.lora.h5", "transformers"} <= {path.name for path in paths}
    with not_found():
        loaded = keras.saving.load_model(tmp_path / "model.keras", compile=False)
    assert written(load(str(tmp_path / "preset"))) == written(loaded)
