"""The weight of a sample whose label has many parts: it is that of every pixel of a mask, of every word of a text."""

from collections.abc import Mapping, Sequence
from typing import Any

import keras

from everstep.components.checks.losses import loss_facts
from everstep.task.compiled import CompiledTask
from everstep.types import Batch


def with_axes(model: keras.Model, batch: Any) -> Any:
    """Returns a batch whose weights, one for each sample, have an axis for each of the label's.

    Keras gives them none: `(batch,)` against losses `(batch, height, width)` fails, or, where a batch is as large as a
    mask is wide, weighs columns in place of samples. Of a loss that is not Keras's own nobody knows which axes its
    values have: those weights stay as they are.

    Args:
      model: Compiled; its losses decide.
      batch: `(x, y, weights)` in arrays or tensors; whatever else it is, it is returned as it is.
    """
    if not isinstance(batch, tuple | list) or len(batch) != 3 or len(getattr(batch[2], "shape", ())) != 1:
        return batch
    x, y, weight = batch
    leaves = keras.tree.flatten(y)
    facts = loss_facts(model, len(leaves))
    if len(facts) != len(leaves) or not _in_one_order(model.loss, y):
        return batch
    ranks = [_rank(leaf.shape) if fact.by_element else 1 for fact, leaf in zip(facts, leaves, strict=True)]
    if set(ranks) == {1}:
        return batch
    shaped = [keras.ops.reshape(weight, (-1, *(1,) * (rank - 1))) for rank in ranks]
    return x, y, shaped[0] if len(set(ranks)) == 1 else keras.tree.pack_sequence_as(y, shaped)


class WeightedTask(CompiledTask):
    """A compiled model whose samples may have weights, whatever their labels look like."""

    def train_step(
        self, inputs: Batch, model: keras.Model, optimizer: keras.Optimizer, metrics: Sequence[keras.Metric]
    ) -> Mapping[str, Any]:
        """Learns from one batch."""
        return super().train_step(with_axes(model, inputs), model, optimizer, metrics)

    def validation_step(self, inputs: Batch, model: keras.Model, metrics: Sequence[keras.Metric]) -> Mapping[str, Any]:
        """Evaluates one batch."""
        return super().validation_step(with_axes(model, inputs), model, metrics)


def _in_one_order(loss: Any, y: Any) -> bool:
    """Tells whether the losses of several outputs come in the order of the labels."""
    if isinstance(loss, Mapping):
        return isinstance(y, Mapping) and loss.keys() == y.keys()
    return not (isinstance(loss, list | tuple) and isinstance(y, Mapping))


def _rank(shape: tuple[int | None, ...]) -> int:
    """Returns how many axes a label's losses have, or one more, which Keras takes off; a last axis of 1 is no axis."""
    return max(len(shape) - (shape[-1] == 1), 1) if shape else 1
