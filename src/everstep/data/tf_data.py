"""A user's own `tf.data.Dataset`; also the one place that imports TensorFlow for reading data."""

import os
from collections.abc import Iterator
from typing import Any

from everstep.data import nest, special, tf_pipeline
from everstep.data.stream import Stream, skip
from everstep.errors import UsageError, missing_extra
from everstep.types import Batch


def load_tensorflow(purpose: str) -> Any:
    """Returns the module `tensorflow`, which sees no GPU when another backend trains.

    Args:
      purpose: What needs it, for the message when it is not installed.

    Raises:
      UsageError: TensorFlow is not installed.
    """
    try:
        import tensorflow as tf
    except ImportError as error:
        raise missing_extra("tensorflow", "tensorflow", purpose) from error
    if os.environ.get("KERAS_BACKEND", "tensorflow") != "tensorflow":
        _hide_gpus(tf)
    return tf


def _hide_gpus(tf: Any) -> None:
    try:
        tf.config.set_visible_devices([], "GPU")
    except RuntimeError:  # TensorFlow is already running on them, and devices cannot be taken back
        return


class TFDataStream(Stream):
    """Batches of a `tf.data.Dataset`, as NumPy arrays.

        stream = TFDataStream(dataset.shuffle(1000, seed=1).batch(32), repeat=True)

    Resuming makes the dataset again what it was and skips the batches that were used. A dataset that shuffles
    anew at every pass orders pass n by its seed and n, so the passes of earlier epochs are first made,
    without being read (one that caches its shuffled order, and has an end, reads the first). That is exact for
    deterministic pipelines: sources that do not change, seeded shuffles, stateless maps. A shuffle without a seed
    is one of them if the global seed was set before the dataset was made, as it is for what a task's
    `build_inputs` makes. `guarantee` names what TensorFlow shows of the rest. It does not show what Python code inside
    the pipeline draws from, as in `from_generator`: that has to give the same samples at every call.

    Args:
      dataset: A batched dataset; it may be infinite.
      repeat: Whether epoch follows epoch without end.
    """

    def __init__(self, dataset: Any, *, repeat: bool = False):
        load_tensorflow("reading a tf.data.Dataset")
        size = int(dataset.cardinality())
        super().__init__(repeat=repeat, batches_per_epoch=size if size >= 0 else None)
        self._dataset = dataset
        self._infinite = size == -1
        self._passes = 0
        self._live: _Pass | None = None

    @property
    def infinite(self) -> bool:
        """Whether the dataset repeats itself, or filters one that does."""
        return tf_pipeline.has_no_end(self._dataset)

    @property
    def endless(self) -> bool:
        """Whether the dataset repeats itself, or is repeated here."""
        return self._infinite or super().endless

    @property
    def guarantee(self) -> str:
        """What in the pipeline draws numbers that a resumed run cannot draw again; see `Stream.guarantee`."""
        tf = load_tensorflow("reading a tf.data.Dataset")
        one_pass = self._infinite and self.repeat
        return "; ".join(tf_pipeline.weaknesses(tf, self._dataset, passes=not one_pass))

    def open(self, epoch: int, batch: int) -> Iterator[Batch]:
        """Returns the epoch's batches from that batch on, going on with the running pass where it can."""
        live = self._live
        if live is not None and not live.broken and live.epoch == epoch and live.batch <= batch:
            skip(live, batch - live.batch, batch)
            return live
        self._live = self._start(epoch, batch)
        return self._live

    def _start(self, epoch: int, batch: int) -> "_Pass":
        if tf_pipeline.reshuffles(self._dataset):
            self._wind(epoch, batch)
        # One batch less is skipped in the pipeline: reading it proves that the position exists.
        skipped = max(batch - 1, 0)
        rest = self._dataset.skip(skipped)
        live = _Pass(epoch, skipped, iter(rest) if _has_special(rest) else rest.as_numpy_iterator())
        self._passes += 1
        skip(live, batch - skipped, batch)
        return live

    def _wind(self, epoch: int, batch: int) -> None:
        """Makes the passes of the epochs before, so that the next one has its epoch's order."""
        if self._passes > epoch and (self.repeat or batch > 0):
            raise UsageError(
                "this tf.data.Dataset shuffles anew at every pass and cannot go back to an earlier one in "
                "the same process: run again to resume, or use shuffle(…, reshuffle_each_iteration=False), "
                "arrays or record files"
            )
        if epoch > 0 and tf_pipeline.caches(self._dataset) and not tf_pipeline.has_no_end(self._dataset):
            self._read_first_pass()
        for _ in range(self._passes, epoch):
            iter(self._dataset)
        self._passes = max(self._passes, epoch)

    def _read_first_pass(self) -> None:
        """Reads the first pass to its end: its order is what a cache keeps for all later ones."""
        if self._passes == 0:
            self._live = self._start(0, 0)
        if self._live is not None and self._live.epoch == 0:
            for _ in self._live:
                pass


class _Pass(Iterator[Batch]):
    """One pass over a dataset that knows how many of the epoch's batches are behind it."""

    def __init__(self, epoch: int, batch: int, batches: Iterator[Batch]):
        self.epoch, self.batch, self.broken = epoch, batch, False
        self._batches = batches

    def __next__(self) -> Batch:
        try:
            value = next(self._batches)
        except StopIteration:
            raise
        except BaseException:
            self.broken = True  # TensorFlow would go on behind the batch that failed
            raise
        self.batch += 1
        return nest.map_leaves(special.on_host, value)


def _has_special(dataset: Any) -> bool:
    """Whether elements hold sparse or ragged tensors, which TensorFlow would take apart otherwise than we do."""
    tf = load_tensorflow("reading a tf.data.Dataset")
    return any(not isinstance(spec, tf.TensorSpec) for spec in tf.nest.flatten(dataset.element_spec))


def is_unbatched(dataset: Any) -> bool:
    """Whether the dataset has a component without any axis: it yields samples, not batches."""
    tf = load_tensorflow("reading a tf.data.Dataset")
    specs = tf.nest.flatten(dataset.element_spec)
    return any(getattr(spec, "shape", None) is not None and spec.shape.rank == 0 for spec in specs)
