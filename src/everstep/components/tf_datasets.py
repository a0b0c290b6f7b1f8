"""A project's `tf.data.Dataset`: one pass of it, whatever it repeats."""

from typing import Any

from everstep.data import tf_pipeline
from everstep.data.tf_data import load_tensorflow

RUNS_OVER = (
    "the dataset is batched after repeat(), so the last batch of an epoch holds samples of the next one, and some "
    "samples are not in every epoch: batch before you repeat"
)
"""What to say where `runs_over`."""


def is_dataset(value: Any) -> bool:
    """Tells a `tf.data.Dataset` from a Python iterable; imports nothing."""
    return hasattr(value, "element_spec") and hasattr(value, "as_numpy_iterator")


def one_pass(dataset: Any) -> Any:
    """Returns the dataset behind an endless `repeat()`: passes are repeated by whoever reads them.

    So each epoch is a pass of its own, and a run that goes on opens the one it is in instead of reading all before.
    A dataset that repeats in another way, as `repeat().batch(8)`, is returned as it is.
    """
    part = dataset
    while _is(part, "Prefetch") and len(part._inputs()) == 1:
        part = part._inputs()[0]
    if _is(part, "Repeat") and int(part.cardinality()) == -1 and len(part._inputs()) == 1:
        (inner,) = part._inputs()
        return inner if not tf_pipeline.has_no_end(inner) else dataset
    return dataset


def runs_over(dataset: Any, count: int) -> bool:
    """Tells whether epochs of `count` samples end inside a batch: the dataset repeats before it is batched."""
    if not tf_pipeline.has_no_end(dataset):
        return False
    tf = load_tensorflow("reading a tf.data.Dataset")
    late = [
        part for part in tf_pipeline.parts(dataset) if hasattr(part, "_batch_size") and tf_pipeline.has_no_end(part)
    ]
    sizes = [tf.get_static_value(part._batch_size) for part in late]
    return any(size is not None and count % int(size) for size in sizes)


def _is(part: Any, kind: str) -> bool:
    return kind in type(part).__name__ and hasattr(part, "_inputs")
