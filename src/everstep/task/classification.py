"""Classification: integer labels, one logit per class."""

from collections.abc import Sequence
from typing import Any

import keras
from keras import ops

from everstep.data.labels import check_labels
from everstep.task.task import Task, unpack
from everstep.types import Batch


class ClassificationTask(Task):
    """Tells `num_classes` classes apart; the model returns logits. Write `build_model` and `build_inputs`."""

    num_classes: int

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

    def check_batch(self, inputs: Batch) -> None:
        """Refuses labels out of range: a device would compute a finite loss from them."""
        labels = unpack(inputs)[1]
        if labels is not None:
            check_labels(labels, self.num_classes, f"{self.name}: the labels")
