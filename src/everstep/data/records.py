"""TFRecord files: shuffled by (seed, epoch), resumed by skipping raw records before they are parsed."""

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from everstep.data import order, passes, tf_pipeline
from everstep.data.damage import naming_damage
from everstep.data.files import Patterns, find_files, read_records
from everstep.data.stream import Stream, skip
from everstep.data.tf_data import load_tensorflow
from everstep.errors import UsageError
from everstep.types import Batch


class RecordStream(Stream):
    """Batches from TFRecord files.

        def parse(record):
            features = tf.io.parse_single_example(record, {"x": tf.io.FixedLenFeature([4], tf.float32)})
            return features["x"]

        stream = RecordStream("data/train-*.tfrecord", parse, 32, shuffle_buffer=10_000, repeat=True)

    The order is a pure function of (seed, epoch): the files' order, their interleaving and the shuffle buffer
    all follow from it, whatever TensorFlow's global seed is. `parse` must be a function of the record alone.

    Args:
      patterns: A path, a glob, several of them separated by commas, or a list of those.
      parse: Makes a sample, any nesting of tensors, of one serialised record; runs in parallel, in order.
      batch_size: Samples per batch.
      shuffle_buffer: Records to draw from at random; 0 reads the sorted files one after the other.
      seed: With the epoch, decides the order.
      repeat: Whether epoch follows epoch without end.
      drop_remainder: Whether the last, short batch of an epoch is left out.
      compression: `""`, `"GZIP"` or `"ZLIB"`.
      prefetch: Batches prepared ahead; None lets TensorFlow decide.

    Raises:
      UsageError: A pattern matches no file, a file is empty, there is no such compression, or TensorFlow is not
        installed. Reading may raise it, too: where a file is damaged, with its name and the place in it.
    """

    def __init__(
        self,
        patterns: Patterns | Mapping[str, Patterns],
        parse: Callable[[Any], Any],
        batch_size: int,
        *,
        shuffle_buffer: int = 0,
        seed: int = 0,
        repeat: bool = False,
        drop_remainder: bool = False,
        compression: str = "",
        prefetch: int | None = None,
    ):
        self._tf = load_tensorflow("reading TFRecord files")
        if batch_size < 1:
            raise UsageError(f"global_batch_size is {batch_size}; it must be at least 1")
        self._files = find_files(patterns)
        self._parse = self._tf.function(parse)  # traced once, not once per epoch
        self._batch_size, self._drop_remainder = batch_size, drop_remainder
        self._shuffle_buffer, self._seed = shuffle_buffer, seed
        self._compression, self._read_file = compression, read_records(compression)
        self._prefetch = self._tf.data.AUTOTUNE if prefetch is None else prefetch
        super().__init__(repeat=repeat)

    @property
    def guarantee(self) -> str:
        """Random numbers in `parse` follow no position: skipped records do not draw; see `Stream.guarantee`."""
        record = self._tf.TensorSpec((), self._tf.string)
        if not any(tf_pipeline.draws(self._tf, self._parse.get_concrete_function(record).graph)):
            return ""
        return "parse draws random numbers, others after a resume: use tf.random.stateless_…, seeded by the record"

    def open(self, epoch: int, batch: int) -> Iterator[Batch]:
        """Returns the epoch's batches from that batch on; skipped records are read but not parsed."""
        # One batch less is skipped as raw records: reading it proves that the position exists.
        skipped = max(batch - 1, 0)
        dataset = self._records(epoch).skip(skipped * self._batch_size)
        dataset = dataset.map(self._parse, num_parallel_calls=self._tf.data.AUTOTUNE, deterministic=True)
        dataset = dataset.batch(self._batch_size, drop_remainder=self._drop_remainder)
        batches = self._deterministic(dataset.prefetch(self._prefetch)).as_numpy_iterator()
        batches = naming_damage(self._tf, batches, [(file, self._read_file) for file in self._files])
        skip(batches, batch - skipped, batch)
        return batches

    def _records(self, epoch: int) -> Any:
        """Returns the epoch's raw records in their order."""
        read = self._tf.data.TFRecordDataset
        if not self._shuffle_buffer:
            return read(self._files, self._compression)
        random = order.generator(self._seed, epoch)
        files = [self._files[index] for index in random.permutation(len(self._files))]
        records = read(files, self._compression, num_parallel_reads=min(len(files), passes.PARALLEL_FILES))
        buffer, seeds = self._shuffle_buffer, passes.seeds(random)
        return passes.shuffled(self._tf, self._deterministic(records), buffer, *seeds)

    def _deterministic(self, dataset: Any) -> Any:
        options = self._tf.data.Options()
        options.deterministic = True
        return dataset.with_options(options)
