"""The stream behind `InputReader`: an epoch is a pipeline, resuming opens the same one and skips."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from everstep.data import tf_pipeline
from everstep.data.damage import naming_damage
from everstep.data.input_pipeline import Hooks, InputPipeline, Reading
from everstep.data.passes import Source
from everstep.data.stream import Stream, skip
from everstep.data.tf_data import load_tensorflow
from everstep.types import Batch


class InputStream(Stream):
    """Batches from record files or TensorFlow Datasets; made by `InputReader.read`.

    The order is a pure function of (seed, epoch). Skipped records are read but not parsed where each makes one
    sample and no function draws random numbers; otherwise what comes before the position is computed again.

    Args:
      sources: What to read; a dict of sources where `hooks.combine` makes one of several.
      hooks: A user's functions.
      reading: How to read.
      input_context: Handed on to `hooks.transform_and_batch`.
    """

    def __init__(
        self, sources: Source | Mapping[str, Source], hooks: Hooks, reading: Reading, input_context: Any = None
    ):
        self._tf = load_tensorflow("reading record files")
        self._pipeline = InputPipeline(self._tf, sources, hooks, reading, input_context)
        self._sources = [sources] if isinstance(sources, Source) else list(sources.values())
        self._prefetch = self._tf.data.AUTOTUNE if reading.prefetch is None else reading.prefetch
        size = int(self._pipeline.unshuffled.cardinality())
        self._infinite = size == -1
        super().__init__(repeat=reading.repeat, batches_per_epoch=size if size >= 0 else None)

    @property
    def endless(self) -> bool:
        """Whether epoch follows epoch, or the first one has no end."""
        return self._infinite or super().endless

    @property
    def files(self) -> Sequence[str]:
        """The record files; see `Stream.files`."""
        return [file for source in self._sources for file, _ in source.readers()]

    @property
    def guarantee(self) -> str:
        """What in the user's functions draws numbers that a resumed run cannot draw again; see `Stream.guarantee`."""
        weaknesses = tf_pipeline.weaknesses(self._tf, self._pipeline.unshuffled, passes=not self._infinite)
        return "; ".join(weaknesses)

    def open(self, epoch: int, batch: int) -> Iterator[Batch]:
        """Returns the epoch's batches from that batch on."""
        # One batch less is skipped in the pipeline: reading it proves that the position exists.
        skipped = max(batch - 1, 0)
        batches = self._pipeline.batches(epoch, skipped).prefetch(self._prefetch).as_numpy_iterator()
        named = naming_damage(self._tf, batches, [pair for source in self._sources for pair in source.readers()])
        skip(named, batch - skipped, batch)
        return named
