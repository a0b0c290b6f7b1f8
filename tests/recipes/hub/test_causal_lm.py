"""`hub/causal_lm`: KerasHub language models, trained whole or by adapters."""

import json
import math

import keras
import numpy as np
import pytest

import everstep as es
from everstep.engine.hub import keras_hub
from everstep.engine.late_tensorflow import not_found
from everstep.errors import UsageError
from everstep.task.config import GenerationConfig
from everstep.testing.hub import TEXT, tiny_causal_lm

pytestmark = pytest.mark.backend


@pytest.fixture(scope="module")
def texts(tmp_path_factory):
    path = tmp_path_factory.mktemp("texts") / "texts.jsonl"
    path.write_text("\n".join(json.dumps({"text": text}) for text in TEXT), "utf-8")
    return str(path)


@pytest.fixture(scope="module")
def gpt2(tiny_preset):
    return tiny_preset("causal_lm", "gpt2")


def experiment(preset, texts, **task):
    params = es.get_exp_config("hub/causal_lm")
    data = {"input_path": texts, "global_batch_size": 4, "sequence_length": 32}
    rate = {"learning_rate": {"type": "constant", "constant": {"learning_rate": 0.01}}, "warmup": {"type": None}}
    params.override(
        {
            "task": {"preset": preset, "train_data": data, "validation_data": data},
            "trainer": {
                "train_steps": 4,
                "steps_per_loop": 2,
                "validation_interval": 4,
                "checkpoint_interval": 4,
                "optimizer_config": rate,
            },
        }
    )
    params.override({"task": task})
    return params


def run(params, directory):
    task = es.get_task(params.task)
    model, logs = es.run_experiment(task, params, directory, export=False, verbose=False)
    return task, model, logs


def causal_lm(params):
    params.validate()
    return es.get_task(params.task).build_model()


def as_it_was(preset):
    with not_found():
        return keras_hub().models.CausalLM.from_preset(preset)


def refused(preset, texts, **task):
    with pytest.raises(UsageError) as error:
        causal_lm(experiment(preset, texts, **task))
    assert "\n" not in str(error.value)
    return error.value


def test_adapters_are_trained_and_nothing_else(gpt2, texts, tmp_path):
    params = experiment(gpt2, texts, lora={"rank": 2, "targets": ["query", "attention_output"]})
    task, model, logs = run(params, tmp_path / "run")
    kernels = {variable.path: np.array(keras.ops.convert_to_numpy(variable)) for variable in model.variables}
    before = as_it_was(gpt2)
    known = {variable.path: keras.ops.convert_to_numpy(variable) for variable in before.variables}
    trained = {variable.path for variable in model.trainable_variables}
    assert len(trained) == 2 * 2 * 2  # layers, targets, matrices
    assert all("lora_kernel" in path for path in trained)
    assert all(np.array_equal(kernels[path], known[path]) for path in known if path in kernels)
    assert all(kernels[path].any() for path in trained)  # the second matrix starts as zeros
    assert logs["perplexity"] == pytest.approx(math.exp(logs["validation_loss"]), rel=0.05)


def test_packed_rows_have_the_loss_of_padded_ones(gpt2, texts):
    task = es.get_task(experiment(gpt2, texts, validation_data={"packing": True}).task)
    model = task.build_model()
    losses = []
    for packing in (False, True):
        data = task.task_config.validation_data.replace(packing=packing, sequence_length=64, global_batch_size=2)
        stream = task.build_inputs(data)
        metrics = task.build_metrics(training=False)
        batches = list(stream.open(0, 0))
        for batch in batches:
            task.validation_step(batch, model, metrics)
        losses.append(math.log(metrics[-1].result()))  # the mean over all tokens, however they are divided into batches
    assert losses[0] == pytest.approx(losses[1], rel=1e-5)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_generates(gpt2, texts, temperature):
    task = es.get_task(experiment(gpt2, texts).task)
    model = task.build_model()
    config = GenerationConfig(max_tokens=6, temperature=temperature)
    found = task.generate(model, ["the dog", "a slow green turtle"], config)
    if temperature:
        assert found == task.generate(model, ["the dog", "a slow green turtle"], config)
    else:
        wanted = as_it_was(gpt2)
        wanted.compile(sampler="greedy")
        prompt = "the dog"
        length = len(task.encode(prompt)) + 6
        assert found[0] == wanted.generate(prompt, max_length=length, strip_prompt=True)
        assert found[1] != found[0]


def test_unknown_presets_are_refused(texts, tmp_path):
    empty = tmp_path / "empty"
    empty.mkdir()
    error = refused("", texts)
    assert (error.key, error.reason) == ("task.preset", "is required")
    error = refused("gpt2_base_eng", texts)
    assert (error.key, error.received) == ("task.preset", "gpt2_base_eng")
    assert "'gpt2_base_en'" in error.remedy
    assert "save_to_preset" in refused(str(tmp_path / "missing"), texts).remedy
    assert "no config.json" in refused(str(empty), texts).reason
    (empty / "config.json").write_text("{", "utf-8")
    assert "config.json" in refused(str(empty), texts).reason


def test_presets_of_another_kind_are_refused(tiny_preset, texts):
    error = refused(tiny_preset("text_classifier", "bert"), texts)
    assert error.key == "task.preset"
    assert "BertBackbone" in error.reason
    for name in ("bert_base_en", "bart_base_en"):  # by name: nothing is downloaded
        assert refused(name, texts).reason == "is not a causal language model"


def test_a_tokenizer_that_does_not_fit_is_refused(texts, tmp_path):
    error = refused(tiny_causal_lm(tmp_path / "small", vocabulary_size=100), texts)
    assert error.key == "task.preset"
    assert "321 tokens, but its model knows 100" in error.reason


def test_another_tokenizer_than_that_of_the_preset_is_refused(gpt2, texts):
    params = experiment(gpt2, texts, train_data={"tokenizer": "bytes"})
    with pytest.raises(UsageError) as error:
        es.get_task(params.task).build_inputs(params.task.train_data)
    assert (error.value.key, error.value.received) == ("tokenizer", "bytes")


def test_adapters_that_cannot_be_are_refused(gpt2, texts):
    error = refused(gpt2, texts, lora={"rank": 0})
    assert (error.key, error.received) == ("task.lora.rank", 0)
    error = refused(gpt2, texts, lora={"targets": ["querry"]})
    assert (error.key, error.received) == ("task.lora.targets", "querry")
    assert "'query'" in error.remedy
    error = refused(gpt2, texts, quantize="int8")
    assert error.key == "task.quantize"
    assert "lora" in error.remedy
    error = refused(gpt2, texts, quantize="float8", lora={"rank": 2})
    assert error.key == "task.quantize"
    assert "float8" in error.remedy


def test_frozen_variables(gpt2, texts):
    params = experiment(gpt2, texts, freeze=["embedding", "transformer_layer_0/"])
    paths = [variable.path for variable in es.get_task(params.task).build_model().trainable_variables]
    assert paths
    assert not [path for path in paths if "embedding" in path or "layer_0/" in path]
    error = refused(gpt2, texts, freeze=["emedding"])
    assert (error.key, error.received) == ("task.freeze", "emedding")
    assert refused(gpt2, texts, freeze=["."]).reason == "leaves nothing to train"


@pytest.mark.full
@pytest.mark.parametrize("mode", ["int8", "int4"])
def test_adapters_beside_a_quantized_backbone_have_the_gradients_of_the_exact_one(gpt2, texts, mode):
    found = []
    for quantized in (None, mode):
        task = es.get_task(experiment(gpt2, texts, quantize=quantized, lora={"rank": 4}).task)
        model = task.build_model()
        kinds = {str(variable.dtype) for variable in model.variables if "kernel" in variable.name}
        assert ("int8" in kinds) == (quantized is not None)  # two of int4 share a byte
        random = np.random.default_rng(0)
        for variable in model.trainable_variables:
            variable.assign(random.normal(scale=0.3, size=variable.shape).astype("float32"))
        batch = next(iter(task.build_inputs(task.task_config.validation_data).open(0, 0)))

        def loss_fn(task=task, model=model, batch=batch):
            features, labels, _ = task.unpack(batch)
            return task.build_losses(labels, model(features, training=True)), None

        _, gradients = es.value_and_grad(loss_fn, model.trainable_variables)
        found.append(np.concatenate([keras.ops.convert_to_numpy(one).ravel() for one in gradients]))
    exact, other = found
    likeness = exact @ other / np.linalg.norm(exact) / np.linalg.norm(other)
    assert likeness > (0.98 if mode == "int8" else 0.7)


@pytest.mark.parametrize("family", ["gpt2", pytest.param("llama3", marks=pytest.mark.full)])
def test_the_loss_in_chunks_is_the_loss(family, tiny_preset, texts):
    """Of packed rows; heads are tied embeddings in GPT-2, and weights of their own in Llama 3."""
    preset, found = tiny_preset("causal_lm", family), []
    for chunk in (None, 20):
        data = {"packing": True, "sequence_length": 48}
        task = es.get_task(experiment(preset, texts, loss_chunk_tokens=chunk, train_data=data).task)
        model = task.build_model()
        batch = next(iter(task.build_inputs(task.task_config.train_data).open(0, 0)))
        optimizer = keras.optimizers.SGD(0.5)
        optimizer.build(model.trainable_variables)
        logs = task.train_step(batch, model, optimizer, task.build_metrics())
        weights = [keras.ops.convert_to_numpy(variable) for variable in model.trainable_variables]
        found.append((float(logs["loss"]), weights))
    (loss, weights), (chunked, others) = found
    assert loss == pytest.approx(chunked, rel=1e-5)
    for one, other in zip(weights, others, strict=True):
        np.testing.assert_allclose(other, one, rtol=1e-3, atol=1e-5)
