"""Ready-made task: regression."""

from collections.abc import Sequence
from typing import Any

import keras
from keras import ops

from everstep.task.task import Task


class RegressionTask(Task):
    """Predicts numbers; the model's outputs have the shape of the labels. Write `build_model` and `build_inputs`."""

    def build_losses(
        self, labels: Any, model_outputs: Any, aux_losses: Sequence[Any] | None = None, sample_weight: Any = None
    ) -> Any:
        """Returns the mean squared error plus the model's own losses."""
        losses = keras.losses.mean_squared_error(*_alike(labels, model_outputs))
        weighted = losses if sample_weight is None else losses * ops.cast(sample_weight, losses.dtype)
        return ops.mean(weighted) + sum(ops.sum(loss) for loss in aux_losses or [])

    def build_metrics(self, training: bool = True) -> list[keras.Metric]:
        """Returns the mean absolute error, in the labels' own unit."""
        return [keras.metrics.MeanAbsoluteError(name="mae")]

    def process_metrics(self, metrics: Sequence[keras.Metric], labels: Any, model_outputs: Any, **kwargs: Any) -> None:
        """Updates every metric; `kwargs` may hold `sample_weight`."""
        super().process_metrics(metrics, *_alike(labels, model_outputs), **kwargs)


def _alike(labels: Any, outputs: Any) -> tuple[Any, Any]:
    """Returns both with a last axis: labels (n,) and outputs (n, 1) would broadcast to n times n differences."""
    if len(labels.shape) == len(outputs.shape) - 1 and outputs.shape[-1] == 1:
        return ops.expand_dims(labels, -1), outputs
    return labels, outputs
