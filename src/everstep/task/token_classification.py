"""A class for every token of a sequence."""

from collections.abc import Sequence
from typing import Any

import keras
import numpy as np
from keras import ops

from everstep.data.labels import check_labels
from everstep.task.task import Task, unpack
from everstep.types import Batch

IGNORED = -1
"""The label of a token that is not asked for: it counts neither in the loss nor in metrics."""


class TokenClassificationTask(Task):
    """Tells for each token of a sequence which class it is of. Write `build_model` and `build_inputs`.

    The model returns logits (batch, length, classes); labels (batch, length) are class numbers, or `IGNORED` for
    padding and whatever else nobody asks for.
    """

    _classes: int | None = None

    def build_losses(
        self, labels: Any, model_outputs: Any, aux_losses: Sequence[Any] | None = None, sample_weight: Any = None
    ) -> Any:
        """Returns the mean cross-entropy of the tokens that count, plus the model's own losses."""
        self._classes = model_outputs.shape[-1]
        asked, weight = _asked(labels, sample_weight)
        logits = ops.cast(model_outputs, "float32")  # in half precision the sum over many tokens would lose digits
        losses = keras.losses.sparse_categorical_crossentropy(asked, logits, from_logits=True)
        mean = ops.sum(losses * weight) / ops.maximum(ops.sum(weight), 1e-9)
        return mean + sum(ops.sum(loss) for loss in aux_losses or [])

    def build_metrics(self, training: bool = True) -> list[keras.Metric]:
        """Returns the accuracy of the tokens that count."""
        return [keras.metrics.SparseCategoricalAccuracy(name="accuracy")]

    def process_metrics(self, metrics: Sequence[keras.Metric], labels: Any, model_outputs: Any, **kwargs: Any) -> None:
        """Updates every metric with the tokens that count; `kwargs` may hold `sample_weight`."""
        asked, weight = _asked(labels, kwargs.pop("sample_weight", None))
        super().process_metrics(metrics, asked, model_outputs, sample_weight=weight, **kwargs)

    def check_batch(self, inputs: Batch) -> None:
        """Refuses labels that are no class of the model's; `IGNORED` ones are none of its business."""
        labels = unpack(inputs)[1]
        if self._classes is not None and isinstance(labels, np.ndarray):
            check_labels(np.where(labels == IGNORED, 0, labels), self._classes, "the labels")


def _asked(labels: Any, sample_weight: Any) -> tuple[Any, Any]:
    """Returns labels that are classes everywhere, and how much each of them counts."""
    counts = ops.not_equal(labels, IGNORED)
    weight = ops.cast(counts, "float32")
    if sample_weight is not None:
        given = ops.cast(sample_weight, "float32")
        weight = weight * (given if len(given.shape) == 2 else ops.expand_dims(given, -1))
    return ops.where(counts, labels, ops.zeros_like(labels)), weight
