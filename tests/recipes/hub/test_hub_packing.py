"""Packed rows of KerasHub language models: each document as if it were alone."""

import keras
import numpy as np
import pytest

import everstep as es
from everstep.engine.hub import keras_hub
from everstep.engine.remat import rematerialize
from everstep.recipes.hub.packing import PACKED, keep_apart
from everstep.task.generation import IGNORED
from everstep.testing.problems import raises_problem

pytestmark = pytest.mark.backend

VOCABULARY, LENGTH = 50, 18
SIZE = {"vocabulary_size": VOCABULARY, "num_layers": 2, "hidden_dim": 32, "intermediate_dim": 64}
LEARNED = {**SIZE, "num_heads": 2, "max_sequence_length": 32, "dropout": 0.0}
ROTARY = {**SIZE, "num_query_heads": 2, "num_key_value_heads": 1}
EXPERTS = {"num_experts": 3, "top_k": 2}
SHAPES = {
    "GPT2": LEARNED,
    "OPT": LEARNED,
    "GPTNeoX": LEARNED,
    "Bloom": {**SIZE, "num_heads": 2, "dropout": 0.0},
    "Falcon": {**SIZE, "num_attention_heads": 2, "attention_dropout_rate": 0.0, "feedforward_dropout_rate": 0.0},
    "Llama": ROTARY,
    "Llama3": ROTARY,
    "Mistral": {**ROTARY, "sliding_window": 4},
    "Mixtral": {**ROTARY, **EXPERTS, "sliding_window": 4},
    "Qwen": ROTARY,
    "Qwen3": {**ROTARY, "head_dim": 16},
    "QwenMoe": {**ROTARY, **EXPERTS, "moe_intermediate_dim": 16, "shared_expert_intermediate_dim": 16},
    "Gemma": {
        **ROTARY,
        "head_dim": 16,
        "use_sliding_window_attention": True,
        "sliding_window_size": 4,
        "attention_logit_soft_cap": 50.0,
    },
    "Gemma3": {**ROTARY, "head_dim": 16, "image_size": None, "vision_encoder": None, "sliding_window_size": 4},
    "Phi3": ROTARY,
    "GptOss": {**ROTARY, **EXPERTS, "head_dim": 16, "sliding_window": 4},
    "SmolLM3": {
        **SIZE,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "attention_bias": False,
        "attention_dropout": 0.0,
        "rope_layer_enabled_list": [True, False],
        "layer_types": ["full_attention"] * 2,
        "mlp_bias": False,
        "layer_norm_epsilon": 1e-6,
        "max_position_embeddings": 64,
        "rope_theta": 10000.0,
        "partial_rotary_factor": 1.0,
    },
}
DAILY = ("GPT2", "Llama")


def model_of(family):
    models = keras_hub().models
    backbone = getattr(models, f"{family}Backbone")(**SHAPES[family])
    model = getattr(models, f"{family}CausalLM")(backbone=backbone, preprocessor=None, compile=False)
    random = np.random.default_rng(1)
    for weight in model.trainable_weights:
        if len(weight.shape) > 1:
            weight.assign(random.normal(scale=0.2, size=weight.shape).astype("float32"))
    return model


def batches():
    """Three documents in one row; and the same, each in a row of its own. Inputs and labels of both."""
    random = np.random.default_rng(0)
    texts = [random.integers(1, VOCABULARY, length) for length in (6, 8, 4)]
    packed = {name: np.zeros((1, LENGTH), "int32") for name in ("token_ids", "segment_ids", "positions")}
    packed_labels = np.full((1, LENGTH), IGNORED, "int32")
    alone = {"token_ids": np.zeros((3, LENGTH), "int32")}
    alone_labels = np.full((3, LENGTH), IGNORED, "int32")
    start = 0
    for number, text in enumerate(texts):
        place = slice(start, start + len(text) - 1)
        packed["token_ids"][0, place], packed_labels[0, place] = text[:-1], text[1:]
        packed["segment_ids"][0, place], packed["positions"][0, place] = number + 1, np.arange(len(text) - 1)
        alone["token_ids"][number, : len(text) - 1], alone_labels[number, : len(text) - 1] = text[:-1], text[1:]
        start += len(text) - 1
    for inputs in (packed, alone):
        inputs["padding_mask"] = (inputs["token_ids"] > 0).astype("int32")
    return (packed, packed_labels), (alone, alone_labels)


def document_losses(model, inputs, labels, segments=None):
    logits = model(inputs)
    losses = keras.losses.sparse_categorical_crossentropy(np.maximum(labels, 0), logits, from_logits=True)
    losses = keras.ops.convert_to_numpy(losses)
    if segments is None:
        segments = inputs.get("segment_ids", np.arange(1, len(labels) + 1)[:, None] * np.ones_like(labels))
    return [losses[(segments == number) & (labels != IGNORED)].mean() for number in (1, 2, 3)]


def gradients(model, inputs, labels):
    counts = keras.ops.cast(labels != IGNORED, "float32")

    def loss_fn():
        losses = keras.losses.sparse_categorical_crossentropy(
            np.maximum(labels, 0), model(inputs, training=True), from_logits=True
        )
        return keras.ops.sum(losses * counts) / keras.ops.sum(counts), None

    _, found = es.value_and_grad(loss_fn, model.trainable_variables)
    return [keras.ops.convert_to_numpy(keras.ops.convert_to_tensor(one)) for one in found]


def test_every_family_is_compared():
    assert {f"{name}Backbone" for name in SHAPES} == set(PACKED)


@pytest.mark.parametrize(
    "family", [name if name in DAILY else pytest.param(name, marks=pytest.mark.full) for name in SHAPES]
)
def test_documents_have_the_losses_that_they_have_alone(family):
    model = model_of(family)
    packed, alone = batches()
    plain = {name: packed[0][name] for name in ("token_ids", "padding_mask")}
    before = keras.ops.convert_to_numpy(model(plain))
    keep_apart(model)
    keep_apart(model)
    wanted = document_losses(model, *alone)
    np.testing.assert_allclose(document_losses(model, *packed), wanted, rtol=1e-5)
    leaking = document_losses(model, plain, packed[1], packed[0]["segment_ids"])
    assert not np.allclose(leaking[1:], wanted[1:], rtol=1e-2)
    np.testing.assert_array_equal(keras.ops.convert_to_numpy(model(plain)), before)  # unchanged for other batches


@pytest.mark.parametrize("family", ["GPT2", pytest.param("Llama", marks=pytest.mark.full)])
@pytest.mark.parametrize("remat", [None, ["transformer_layer"], "full"])
def test_training_has_the_gradients_of_documents_alone(family, remat):
    model = model_of(family)
    keep_apart(model)
    packed, alone = batches()
    wanted = gradients(model, *alone)
    layers = rematerialize(model, remat)
    assert bool(remat) == ("transformer_layer_1" in layers)
    for found, expected in zip(gradients(model, *packed), wanted, strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)


def test_other_models_are_refused():
    hub = keras_hub().models
    backbone = hub.BertBackbone(**LEARNED)
    model = hub.BertTextClassifier(backbone, num_classes=2, compile=False)
    with raises_problem(key="task.train_data.packing", received=True, reason="kept apart") as error:
        keep_apart(model)
    assert "GPT2" in error.value.remedy
