"""Tiny KerasHub presets for tests."""

import os
import subprocess
import sys

import keras
import numpy as np
import pytest

from everstep.engine.hub import keras_hub
from everstep.engine.late_tensorflow import not_found
from everstep.testing.hub import tiny_image_classifier

pytestmark = pytest.mark.slow

FAMILIES = ["gpt2", "opt", "bloom", "llama3", "qwen", "mistral", "gemma"]


@pytest.mark.parametrize("family", ["gpt2", *(pytest.param(one, marks=pytest.mark.full) for one in FAMILIES[1:])])
def test_a_causal_lm_has_a_vocabulary_and_writes_text(tiny_preset, family):
    with not_found():
        model = keras_hub().models.CausalLM.from_preset(tiny_preset("causal_lm", family))
    tokenizer = model.preprocessor.tokenizer
    tokens = np.asarray(tokenizer("the quick dog"))
    assert tokenizer.detokenize(tokens) == "the quick dog"
    assert len(tokens) < len("the quick dog")  # merges, not only bytes
    assert model.backbone.vocabulary_size == tokenizer.vocabulary_size()
    model.compile(sampler="greedy")
    assert model.generate("the dog", max_length=12, stop_token_ids=None).startswith("the dog")


@pytest.mark.parametrize(
    "family", ["bert", *(pytest.param(o, marks=pytest.mark.full) for o in ("distil_bert", "roberta"))]
)
def test_a_text_classifier_has_a_vocabulary(tiny_preset, family):
    with not_found():
        model = keras_hub().models.TextClassifier.from_preset(tiny_preset("text_classifier", family))
    batch = model.preprocessor(["the quick dog", "a fox"])
    assert model(batch).shape == (2, 2)


@pytest.mark.parametrize("family", ["vit", pytest.param("resnet", marks=pytest.mark.full)])
def test_an_image_classifier_takes_images(tiny_preset, family):
    with not_found():
        model = keras_hub().models.ImageClassifier.from_preset(tiny_preset("image_classifier", family))
    assert model(np.zeros((2, 16, 16, 3), "float32")).shape == (2, 2)


def test_an_image_classifier_has_the_same_weights_each_time(tmp_path):
    """ViT draws its biases; Keras itself is not seeded here."""
    models = []
    for name in ("one", "other"):
        with not_found():
            models.append(keras_hub().models.ImageClassifier.from_preset(tiny_image_classifier(tmp_path / name)))
    for one, other in zip(*(model.weights for model in models), strict=True):
        np.testing.assert_array_equal(keras.ops.convert_to_numpy(one), keras.ops.convert_to_numpy(other), one.path)


@pytest.mark.full  # KerasHub is imported anew: ten seconds
def test_keras_hub_imports_no_tensorflow_where_it_is_not_the_backend(tmp_path):
    """Keras still finds it afterwards."""
    code = f"""
import sys
from everstep.engine.hub import keras_hub
from everstep.engine.late_tensorflow import not_found
from everstep.testing.hub import tiny_causal_lm
with not_found():
    keras_hub().models.CausalLM.from_preset(tiny_causal_lm({str(tmp_path / "gpt2")!r}))
print("tensorflow" in sys.modules)
from keras.src.utils.module_utils import tensorflow
print(tensorflow.available)
"""
    env = {**os.environ, "KERAS_BACKEND": "jax"}
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["False", "True"]
