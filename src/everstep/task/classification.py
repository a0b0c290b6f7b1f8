"""Classification: integer labels, one logit per class."""

from collections.abc import Sequence
from typing import Any

import keras
from keras import ops

from everstep.task.task import Task


class ClassificationTask(Task):
    """Tells classes apart; the model returns a logit for each. Write `build_model` and `build_inputs`."""

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
