"""The cross-entropy in chunks of tokens: the value and the gradients of the plain one."""

import keras
import numpy as np
import pytest
from keras import layers, ops

import everstep as es
from everstep.errors import UsageError
from everstep.recipes.gpt2 import GPT2Config
from everstep.recipes.gpt2_config import GPT2ModelConfig
from everstep.recipes.gpt2_task import GPT2Task, gpt2
from everstep.task.chunked_loss import chunked_cross_entropy, split_model
from everstep.task.classification import IGNORED, LanguageModelTask
from everstep.task.grad import value_and_grad

pytestmark = pytest.mark.backend

RANDOM = np.random.default_rng(0)
LABELS = RANDOM.integers(0, 13, (2, 11)).astype("int32")
WEIGHTS = (RANDOM.random((2, 11)) * (RANDOM.random((2, 11)) > 0.3)).astype("float32")


def variables(bias=True):
    shapes = [(2, 11, 8), (8, 13), *([(13,)] if bias else [])]
    return [keras.Variable(RANDOM.normal(size=shape).astype("float32")) for shape in shapes]


def loss_in_one_piece(features, kernel, bias=None):
    logits = ops.matmul(features, kernel) + (0.0 if bias is None else bias)
    losses = keras.losses.sparse_categorical_crossentropy(ops.convert_to_tensor(LABELS), logits, from_logits=True)
    weights = ops.convert_to_tensor(WEIGHTS)
    return ops.sum(losses * weights) / ops.sum(weights)


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("chunk", [1, 5, 11, 100])
def test_value_and_gradients_are_those_of_the_plain_loss(chunk, bias):
    held = variables(bias)

    def chunked(training=True):
        values = [*(variable.value for variable in held), *([] if bias else [None])]
        labels, weights = ops.convert_to_tensor(LABELS), ops.convert_to_tensor(WEIGHTS)
        return chunked_cross_entropy(*values, labels, weights, chunk, training)

    loss, grads = value_and_grad(lambda: 3.0 * loss_in_one_piece(*(variable.value for variable in held)), held)
    own_loss, own_grads = value_and_grad(lambda: 3.0 * chunked(), held)
    assert float(own_loss) == pytest.approx(float(loss), rel=1e-6)
    assert 3.0 * float(ops.convert_to_numpy(chunked(training=False))) == pytest.approx(float(loss), rel=1e-6)
    for one, other in zip(own_grads, grads, strict=True):
        np.testing.assert_allclose(ops.convert_to_numpy(one), ops.convert_to_numpy(other), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("far", [0.0, 60.0, 1000.0])
def test_a_logit_far_above_those_looked_at(monkeypatch, far):
    """On JAX it overflows in the first calculation, from 88 on; value and gradients are the same on every backend."""
    monkeypatch.setattr("everstep.task.chunked_loss.SAMPLED", 2)
    above = RANDOM.normal(size=(8, 13)).astype("float32")
    above[:, 12] += far
    features = keras.Variable(np.abs(RANDOM.normal(size=(2, 11, 8))).astype("float32"))
    kernel = keras.Variable(above)
    labels, weights = ops.convert_to_tensor(LABELS % 12), ops.convert_to_tensor(WEIGHTS)

    def chunked():
        return chunked_cross_entropy(features.value, kernel.value, None, labels, weights, 5)

    def straight():
        logits = ops.matmul(features.value, kernel.value)
        return ops.sum(
            keras.losses.sparse_categorical_crossentropy(labels, logits, from_logits=True) * weights
        ) / ops.sum(weights)

    loss, grads = value_and_grad(chunked, [features, kernel])
    expected, others = value_and_grad(straight, [features, kernel])
    assert float(loss) == pytest.approx(float(expected), rel=1e-5)
    for one, other in zip(grads, others, strict=True):
        np.testing.assert_allclose(ops.convert_to_numpy(one), ops.convert_to_numpy(other), rtol=1e-4, atol=1e-4)


def test_in_half_precision_it_differs_by_rounding_only():
    features, kernel = variables(bias=False)
    labels, weights = ops.convert_to_tensor(LABELS), ops.convert_to_tensor(WEIGHTS)

    def chunked():
        half = ops.cast(features.value, "bfloat16")
        return chunked_cross_entropy(half, kernel.value, None, labels, weights, 5)

    loss, grads = value_and_grad(chunked, [features, kernel])
    exact, expected = value_and_grad(lambda: loss_in_one_piece(features.value, kernel.value), [features, kernel])
    assert float(loss) == pytest.approx(float(exact), rel=1e-2)
    for one, other in zip(grads, expected, strict=True):
        assert keras.backend.standardize_dtype(one.dtype) == "float32"
        np.testing.assert_allclose(ops.convert_to_numpy(one), ops.convert_to_numpy(other), atol=2e-2)


class Words(LanguageModelTask):
    def build_inputs(self, params, input_context=None):
        return None


TOKENS = RANDOM.integers(1, 16, (4, 8)).astype("int32")
SHAPE = GPT2ModelConfig(vocabulary=16, context=8, layers=1, heads=2, width=8)


def step(chunk, labels, sample_weight=None):
    """Loss and weights after one step, and loss and perplexity of an evaluation before it."""
    keras.utils.set_random_seed(0)
    task = Words(GPT2Config(loss_chunk_tokens=chunk))
    model, optimizer = gpt2(SHAPE), keras.optimizers.SGD(0.1)
    batch = tuple(None if part is None else ops.convert_to_tensor(part) for part in (TOKENS, labels, sample_weight))
    metrics = [metric for metric in task.build_metrics() if metric.name == "perplexity"]
    evaluated = task.validation_step(batch, model, metrics)["loss"], metrics[0].result()
    loss = task.train_step(batch, model, optimizer, metrics)["loss"]
    return [ops.convert_to_numpy(value) for value in (*evaluated, loss, *model.trainable_variables)]


@pytest.mark.parametrize("sample_weight", [pytest.param(None, marks=pytest.mark.full), [0.5, 0.0, 2.0, 1.0]])
def test_a_task_trains_and_evaluates_as_without_chunks(sample_weight):
    labels = np.where(RANDOM.random(TOKENS.shape) < 0.2, IGNORED, np.roll(TOKENS, -1, 1)).astype("int32")
    for one, other in zip(step(5, labels, sample_weight), step(None, labels, sample_weight), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6)


def test_a_dense_layer_is_split_off_too():
    inputs = keras.Input((8, 4))
    model = keras.Model(inputs, layers.Dense(3, name="head")(layers.Dense(5)(inputs)))
    body, head = split_model(model)
    kernel, bias = head.weights()
    x = RANDOM.normal(size=(2, 8, 4)).astype("float32")
    np.testing.assert_allclose(
        ops.convert_to_numpy(ops.matmul(body(x), kernel) + bias), ops.convert_to_numpy(model(x)), rtol=1e-5, atol=1e-6
    )
    assert (head.vocabulary, tuple(kernel.shape)) == (3, (5, 3))
    assert split_model(model)[0] is body


@pytest.mark.parametrize("last", [layers.Dense(3, "relu"), layers.LayerNormalization()])
def test_other_last_layers_are_refused(last):
    inputs = keras.Input((8, 4))
    with pytest.raises(UsageError) as caught:
        split_model(keras.Model(inputs, last(inputs)))
    assert caught.value.key == "task.loss_chunk_tokens"
    assert last.name in caught.value.reason


def test_a_metric_of_logits_is_refused():
    task = Words(GPT2Config(loss_chunk_tokens=5))
    assert [metric.name for metric in task.build_metrics()] == ["perplexity"]
    accuracy = keras.metrics.SparseCategoricalAccuracy(name="accuracy")
    with pytest.raises(UsageError) as caught:
        task.validation_step(ops.convert_to_tensor(TOKENS), gpt2(SHAPE), [accuracy])
    assert "'accuracy' needs logits" in caught.value.reason


def test_labels_outside_of_the_vocabulary_are_refused():
    task = GPT2Task(GPT2Config(loss_chunk_tokens=5, model=SHAPE))
    task.validation_step(ops.convert_to_tensor(TOKENS), gpt2(SHAPE), [])
    with pytest.raises(es.UsageError):
        task.check_batch((TOKENS, TOKENS + 16))
