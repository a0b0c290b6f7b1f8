"""Ready-made tasks: classification of samples, images and tokens, and language models."""

import abc
from collections.abc import Mapping, Sequence
from typing import Any

import keras
import numpy as np
from keras import layers, ops

from everstep.data import check_labels
from everstep.errors import UsageError
from everstep.task.chunked_loss import KEY, chunked_cross_entropy, split_model
from everstep.task.config import AugmentationConfig, GenerationConfig
from everstep.task.generation import (
    IGNORED,
    PADDING,
    Document,
    continue_tokens,
    document_loss,
    documents,
    host_logits,
    tokens_of,
)
from everstep.task.grad import value_and_grad
from everstep.task.task import Task, unpack
from everstep.types import Batch


class ClassificationTask(Task):
    """Classifies samples; the model returns a logit per class. Write `build_model` and `build_inputs`."""

    def build_losses(
        self, labels: Any, model_outputs: Any, aux_losses: Sequence[Any] | None = None, sample_weight: Any = None
    ) -> Any:
        """Returns the mean cross-entropy plus the model's own losses."""
        losses = keras.losses.sparse_categorical_crossentropy(labels, model_outputs, from_logits=True)
        weighted = losses if sample_weight is None else losses * ops.cast(sample_weight, losses.dtype)
        return ops.mean(weighted) + sum(ops.sum(loss) for loss in aux_losses or [])

    def build_metrics(self, training: bool = True) -> list[keras.Metric]:
        """Returns accuracy."""
        return [keras.metrics.SparseCategoricalAccuracy(name="accuracy")]


class ImageClassificationTask(ClassificationTask):
    """Classifies images. Write `build_classifier` and `build_inputs`.

    The `augmentation` of the config, if there is one, becomes the first layers of the model. They are active only in
    training: evaluations, predictions and the exported model do not change images. Their random numbers are part of the
    state of the run, so a resumed run continues with the same sequence of variations.
    """

    @abc.abstractmethod
    def build_classifier(self) -> keras.Model:
        """Returns the model from images (height, width, channels) to a logit per class."""

    def build_model(self) -> keras.Model:
        """Returns the classifier behind the augmentation layers."""
        classifier = self.build_classifier()
        varied = augmentation_layers(getattr(self.task_config, "augmentation", None))
        if not varied:
            return classifier
        return keras.Sequential([keras.Input(classifier.input_shape[1:]), *varied, classifier], name="augmented")


def augmentation_layers(config: AugmentationConfig | None) -> list[keras.Layer]:
    """Returns the layers for an augmentation config; empty space is filled with zeros."""
    if config is None:
        return []
    shared: dict[str, Any] = {"fill_mode": "constant"}
    made = [
        config.flip and layers.RandomFlip(config.flip),
        config.rotation and layers.RandomRotation(config.rotation, **shared),
        config.translation and layers.RandomTranslation(config.translation, config.translation, **shared),
        config.zoom and layers.RandomZoom(config.zoom, **shared),
    ]
    return [layer for layer in made if layer]


class TokenClassificationTask(Task):
    """Classifies each token of a sequence. Write `build_model` and `build_inputs`.

    The model returns logits (batch, length, classes); labels (batch, length) are class numbers, or `IGNORED` for
    padding and other tokens to ignore.
    """

    _classes: int | None = None

    def build_losses(
        self, labels: Any, model_outputs: Any, aux_losses: Sequence[Any] | None = None, sample_weight: Any = None
    ) -> Any:
        """Returns the mean cross-entropy of the tokens that count, plus the model's own losses."""
        self._classes = model_outputs.shape[-1]
        known, weight = _known(labels, sample_weight)
        logits = ops.cast(model_outputs, "float32")  # a sum over many tokens in half precision loses digits
        losses = keras.losses.sparse_categorical_crossentropy(known, logits, from_logits=True)
        mean = ops.sum(losses * weight) / ops.maximum(ops.sum(weight), 1e-9)
        return mean + sum(ops.sum(loss) for loss in aux_losses or [])

    def build_metrics(self, training: bool = True) -> list[keras.Metric]:
        """Returns the accuracy of the tokens that count."""
        return [keras.metrics.SparseCategoricalAccuracy(name="accuracy")]

    def process_metrics(self, metrics: Sequence[keras.Metric], labels: Any, model_outputs: Any, **kwargs: Any) -> None:
        """Updates every metric with the tokens that count; `kwargs` may hold `sample_weight`."""
        known, weight = _known(labels, kwargs.pop("sample_weight", None))
        super().process_metrics(metrics, known, model_outputs, sample_weight=weight, **kwargs)

    def batch_weight(self, inputs: Batch) -> Any:
        """Returns the weight of all tokens that count; without labels, None."""
        _, labels, sample_weight = self.unpack(inputs)
        return None if labels is None else ops.sum(_known(labels, sample_weight)[1])

    def check_batch(self, inputs: Batch) -> None:
        """Refuses labels that are not a class of the model, except `IGNORED`."""
        labels = unpack(inputs)[1]
        if self._classes is not None and isinstance(labels, np.ndarray):
            check_labels(np.where(labels == IGNORED, 0, labels), self._classes, "the labels")


def _known(labels: Any, sample_weight: Any) -> tuple[Any, Any]:
    """Returns labels with `IGNORED` replaced by a class, and the weight of each label, 0 for those."""
    counts = ops.not_equal(labels, IGNORED)
    weight = ops.cast(counts, "float32")
    if sample_weight is not None:
        given = ops.cast(sample_weight, "float32")
        weight = weight * (given if len(given.shape) == 2 else ops.expand_dims(given, -1))
    return ops.where(counts, labels, ops.zeros_like(labels)), weight


class LanguageModelTask(TokenClassificationTask):
    """Predicts each token from those before it. Write `build_model` and `build_inputs`.

    Batches are tokens (batch, length) alone, as `tokens` or `(tokens,)`, or `(tokens, labels)`, where labels are the
    next tokens, and `IGNORED` where no prediction is wanted, such as in a prompt. The model returns a logit per token
    of the vocabulary, and must not use later tokens (`everstep.recipes.transformer` with `causal=True`).

    If the config has `loss_chunk_tokens`, the loss is computed for so many tokens at a time, and the logits of a whole
    batch are never stored (`everstep.task.chunked_loss`). Then there is no accuracy, and metrics of logits are refused.
    """

    @property
    def loss_chunk_tokens(self) -> int | None:
        """The number of tokens whose logits exist at the same time; None for all."""
        return getattr(self.task_config, "loss_chunk_tokens", None)

    def build_metrics(self, training: bool = True) -> list[keras.Metric]:
        """Returns accuracy and perplexity, over the tokens that count; without logits perplexity only."""
        accuracy = super().build_metrics(training) if self.loss_chunk_tokens is None else []
        return [*accuracy, Perplexity(name="perplexity")]

    def train_step(
        self, inputs: Batch, model: keras.Model, optimizer: keras.Optimizer, metrics: Sequence[keras.Metric]
    ) -> Mapping[str, Any]:
        """Trains on one batch."""
        inputs = with_next_tokens(inputs)
        if self.loss_chunk_tokens is None:
            return super().train_step(inputs, model, optimizer, metrics)

        def loss_fn() -> tuple[Any, Any]:
            return self._chunked_loss(inputs, model, training=True)

        (loss, entropy), grads = value_and_grad(loss_fn, model.trainable_variables, optimizer=optimizer)
        optimizer.apply(grads, model.trainable_variables)
        self._update_perplexity(metrics, entropy, inputs)
        return {self.loss: loss}

    def validation_step(self, inputs: Batch, model: keras.Model, metrics: Sequence[keras.Metric]) -> Mapping[str, Any]:
        """Evaluates one batch."""
        inputs = with_next_tokens(inputs)
        if self.loss_chunk_tokens is None:
            return super().validation_step(inputs, model, metrics)
        loss, entropy = self._chunked_loss(inputs, model, training=False)
        self._update_perplexity(metrics, entropy, inputs)
        return {self.loss: loss}

    def batch_weight(self, inputs: Batch) -> Any:
        """Returns the weight of all tokens that are predicted, and count."""
        return super().batch_weight(with_next_tokens(inputs))

    def _chunked_loss(self, inputs: Batch, model: keras.Model, training: bool) -> tuple[Any, Any]:
        """Returns the loss, and the mean cross-entropy in it."""
        tokens, labels, sample_weight = self.unpack(inputs)
        body, head = split_model(model)
        self._classes = head.vocabulary
        known, weight = _known(labels, sample_weight)
        features = ops.cast(body(tokens, training=training), head.dtype)
        chunk = int(self.loss_chunk_tokens or 0)
        entropy = chunked_cross_entropy(features, *head.weights(), known, weight, chunk, training)
        return entropy + sum(ops.sum(loss) for loss in model.losses), entropy

    def _update_perplexity(self, metrics: Sequence[keras.Metric], entropy: Any, inputs: Batch) -> None:
        """Adds the mean cross-entropy of a batch to the metrics, weighted by its tokens that count."""
        _, labels, sample_weight = self.unpack(inputs)
        for metric in metrics:
            if not isinstance(metric, Perplexity):
                reason = f"the metric {metric.name!r} needs logits, which are not stored"
                raise UsageError(reason, key=KEY, remedy="remove the metric from build_metrics, or the key")
            metric.update_mean(entropy, ops.sum(_known(labels, sample_weight)[1]))

    def encode(self, text: str) -> list[int]:
        """Returns the tokens of a text. Write it and `decode` for a task that generates text."""
        raise UsageError("has no tokenizer", key=type(self).__name__, remedy="write encode(text) and decode(tokens)")

    def decode(self, tokens: Sequence[int]) -> str:
        """Returns the text of tokens."""
        raise UsageError("has no tokenizer", key=type(self).__name__, remedy="write encode(text) and decode(tokens)")

    @property
    def stop_token(self) -> int | None:
        """The token that ends a text; None if there is none."""
        return None

    @property
    def generation(self) -> GenerationConfig:
        """How text is generated: `generation` of the config, or the defaults."""
        return getattr(self.task_config, "generation", None) or GenerationConfig()

    @property
    def generates(self) -> bool:
        """Whether the task has a tokenizer, so that its model can continue texts."""
        return type(self).decode is not LanguageModelTask.decode

    def generate(self, model: keras.Model, prompts: Sequence[str], config: GenerationConfig | None = None) -> list[str]:
        """Returns what the model writes after each prompt.

        Raises:
          UsageError: The task has no tokenizer, or a prompt is empty or longer than the model's context.
        """
        tokens = [self.encode(prompt) for prompt in prompts]
        return [self.decode(written) for written in self.continue_prompts(model, tokens, config)]

    def continue_prompts(
        self, model: keras.Model, prompts: Sequence[Sequence[int]], config: GenerationConfig | None = None
    ) -> list[list[int]]:
        """Returns the tokens that the model writes after the tokens of each prompt."""
        context = int(tokens_of(model.input).shape[1])
        config = config or self.generation
        return continue_tokens(lambda rows: host_logits(model, rows), prompts, context, config, self.stop_token)

    def written_samples(self, inputs: Batch, model: keras.Model) -> list[dict[str, Any]]:
        """Returns the texts of a batch: `prompt`, `expected`, what the model writes as `text`, and their `loss`.

        Args:
          inputs: A batch of the validation data, as arrays.
          model: The model, with its current weights.
        """
        features, labels, _ = self.unpack(with_next_tokens(inputs))
        labels = np.asarray(ops.convert_to_numpy(labels))
        found: list[Document] = list(documents(features, labels, self.generation))
        logits = host_logits(model, features)
        written = self.continue_prompts(model, [one.prompt for one in found])
        return [
            {
                "prompt": self.decode(one.prompt),
                "expected": self.decode(one.expected),
                "text": self.decode(tokens),
                "loss": document_loss(logits[one.row], labels[one.row], one),
            }
            for one, tokens in zip(found, written, strict=True)
        ]

    def show_written(self, inputs: Batch, model: keras.Model) -> Mapping[str, Any] | None:
        """Returns what the model writes after the first validation prompts, for the trackers."""
        if not self.generates:
            return None
        samples = self.written_samples(inputs, model)
        return {"generated": [f"{one['prompt']}⟶{one['text']}\nexpected: {one['expected']}" for one in samples]}

    def check_batch(self, inputs: Batch) -> None:
        """Refuses tokens, and labels, that are not in the model's vocabulary."""
        tokens = tokens_of(unpack(inputs)[0])
        if self._classes is not None and isinstance(tokens, np.ndarray):
            check_labels(tokens, self._classes, "the tokens")
        super().check_batch(inputs)


class Perplexity(keras.metrics.Mean):
    """Perplexity: e to the power of the mean cross-entropy."""

    def update_state(self, y_true: Any, y_pred: Any, sample_weight: Any = None) -> None:
        """Adds the cross-entropies of logits."""
        logits = ops.cast(y_pred, "float32")
        super().update_state(
            keras.losses.sparse_categorical_crossentropy(y_true, logits, from_logits=True), sample_weight
        )

    def update_mean(self, entropy: Any, weight: Any) -> None:
        """Adds a mean cross-entropy, and the weight of all tokens in it."""
        super().update_state(ops.reshape(entropy, (1,)), ops.reshape(weight, (1,)))

    def result(self) -> Any:
        """Returns the perplexity so far."""
        return ops.exp(super().result())


def with_next_tokens(inputs: Batch) -> Batch:
    """Returns `(tokens, next tokens)` for a batch of tokens only; others are returned unchanged.

    The label of the last token, and of each token before padding, is `IGNORED`. Tokens may also come as `(tokens,)`.
    """
    if isinstance(inputs, tuple | list) and len(inputs) > 1:
        return inputs
    tokens = unpack(inputs)[0]
    following = ops.pad(tokens[:, 1:], [[0, 0], [0, 1]], constant_values=PADDING)
    return tokens, ops.where(ops.equal(following, PADDING), ops.full_like(following, IGNORED), following)
