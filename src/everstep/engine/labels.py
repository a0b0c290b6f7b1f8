"""Which numbers a step takes for class labels, learned while it is traced.

A device computes a finite loss from a label out of range, or dies in the middle of a run. Keras's sparse
cross-entropy says how many classes there are; where its labels are those of the batch, unchanged but for type and
shape, the host can look at them before the device does.
"""

import contextlib
import dataclasses
from collections.abc import Iterator
from typing import Any

import keras
import keras.src.backend as keras_backend


@dataclasses.dataclass(frozen=True)
class SparseLabels:
    """What a sparse cross-entropy was called with."""

    target: Any
    classes: int


@contextlib.contextmanager
def watch_sparse_labels(clip: bool = False) -> Iterator[list[SparseLabels]]:
    """Yields the list of labels that sparse cross-entropies are called with meanwhile.

    Args:
      clip: Whether labels out of range are brought into it, where they would fail: the result is not wanted.
    """
    seen: list[SparseLabels] = []
    original = keras_backend.nn.sparse_categorical_crossentropy

    def watched(target: Any, output: Any, from_logits: bool = False, axis: int = -1) -> Any:
        classes = output.shape[axis]
        if isinstance(classes, int):
            seen.append(SparseLabels(target, classes))
            target = keras.ops.clip(target, 0, classes - 1) if clip else target
        return original(target, output, from_logits=from_logits, axis=axis)

    keras_backend.nn.sparse_categorical_crossentropy = watched
    try:
        yield seen
    finally:
        keras_backend.nn.sparse_categorical_crossentropy = original
