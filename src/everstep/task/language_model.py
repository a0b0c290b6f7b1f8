"""Language modelling: what is the next token?"""

from collections.abc import Mapping, Sequence
from typing import Any

import keras
import numpy as np
from keras import ops

from everstep.data.labels import check_labels
from everstep.task.task import unpack
from everstep.task.token_classification import IGNORED, TokenClassificationTask
from everstep.types import Batch

PADDING = 0
"""The token that fills a sequence up; nobody has to foretell it."""


class LanguageModelTask(TokenClassificationTask):
    """Foretells each token from those before it. Write `build_model` and `build_inputs`.

    Batches are tokens (batch, length) alone, as `tokens` or `(tokens,)`, or `(tokens, labels)`, where labels are the
    next tokens and `IGNORED` where the model is not asked, as in a prompt. The model returns a logit per token of the
    vocabulary; that it does not look ahead is its own business (`everstep.zoo.transformer` with `causal=True`).
    """

    def build_metrics(self, training: bool = True) -> list[keras.Metric]:
        """Returns accuracy and perplexity, over the tokens that count."""
        return [*super().build_metrics(training), Perplexity(name="perplexity")]

    def train_step(
        self, inputs: Batch, model: keras.Model, optimizer: keras.Optimizer, metrics: Sequence[keras.Metric]
    ) -> Mapping[str, Any]:
        """Learns from one batch."""
        return super().train_step(with_next_tokens(inputs), model, optimizer, metrics)

    def validation_step(self, inputs: Batch, model: keras.Model, metrics: Sequence[keras.Metric]) -> Mapping[str, Any]:
        """Evaluates one batch."""
        return super().validation_step(with_next_tokens(inputs), model, metrics)

    def check_batch(self, inputs: Batch) -> None:
        """Refuses tokens, and labels, that are not in the model's vocabulary."""
        tokens = unpack(inputs)[0]
        if self._classes is not None and isinstance(tokens, np.ndarray):
            check_labels(tokens, self._classes, "the tokens")
        super().check_batch(inputs)


class Perplexity(keras.metrics.Mean):
    """How many tokens the model hesitates between, on average: e to the mean cross-entropy."""

    def update_state(self, y_true: Any, y_pred: Any, sample_weight: Any = None) -> None:
        """Adds the cross-entropies of logits."""
        logits = ops.cast(y_pred, "float32")
        super().update_state(
            keras.losses.sparse_categorical_crossentropy(y_true, logits, from_logits=True), sample_weight
        )

    def result(self) -> Any:
        """Returns the perplexity so far."""
        return ops.exp(super().result())


def with_next_tokens(inputs: Batch) -> Batch:
    """Returns `(tokens, next tokens)` where a batch is tokens alone; the last one has none, and so has padding.

    Tokens alone may also come as `(tokens,)`.
    """
    if isinstance(inputs, tuple | list) and len(inputs) > 1:
        return inputs
    tokens = unpack(inputs)[0]
    following = ops.pad(tokens[:, 1:], [[0, 0], [0, 1]], constant_values=PADDING)
    return tokens, ops.where(ops.equal(following, PADDING), ops.full_like(following, IGNORED), following)
