"""The stream that `get_tfrecord_dataset` returns."""

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from everstep.data.input_pipeline import Hooks, Reading
from everstep.data.input_stream import InputStream
from everstep.data.record_blame import blamed
from everstep.data.record_files import naming_urls
from everstep.data.record_source import RecordSource
from everstep.errors import UsageError
from everstep.types import Batch


class RecordStream(InputStream):
    """Batches of a dataset's records, NumPy arrays; made by `get_tfrecord_dataset`.

        for images, labels in stream: ...     # one epoch; the next `for` reads the next one
        len(stream)                           # batches in an epoch
        stream.dataset(epoch=3)               # a `tf.data.Dataset` of that epoch

    `Training.run_train` and `everstep.fit` read it as any `Stream`: epoch after epoch, from any batch on.

    Args:
      source: What to read.
      hooks: A user's functions.
      reading: How to read.
      facts: What decides which batches come, in plain values: a run that goes on has to be told the same.
      names: How the user knows each file, by its path on this machine.
      owns: What has to stay alive as long as this is read.
    """

    def __init__(
        self,
        source: RecordSource,
        hooks: Hooks,
        reading: Reading,
        facts: Mapping[str, Any],
        names: Mapping[str, str],
        owns: Any = None,
    ) -> None:
        super().__init__(source, hooks, reading)
        self.facts = dict(facts)
        self._names = dict(names)
        self._source, self._preprocess, self._owns = source, hooks.decode, owns
        self._epochs_read = 0

    def __len__(self) -> int:
        return self.batches_per_epoch or 0

    def __iter__(self) -> Iterator[Batch]:
        """Returns the batches of one epoch: of training data each time those of the next; the position stays."""
        epoch = self._epochs_read
        self._epochs_read += 1
        return self.open(epoch, 0)

    def dataset(self, epoch: int = 0) -> Any:
        """Returns the batches of one epoch as a `tf.data.Dataset`, for those who want its methods."""
        return self._pipeline.batches(epoch, 0).prefetch(self._prefetch)

    def open(self, epoch: int, batch: int) -> Iterator[Batch]:
        """Returns the epoch's batches from that batch on; an error names the record it comes from."""
        return self._named(lambda: super(RecordStream, self).open(epoch, batch))

    def _named(self, open_: Callable[[], Iterator[Batch]]) -> Iterator[Batch]:
        tf, errors = self._tf, self._tf.errors
        changed, failed = errors.FailedPreconditionError, errors.OpError
        try:
            yield from open_()
        except changed as error:
            raise UsageError(
                f"the record files have changed: they had {self._source.size} records when they were counted; leave "
                "them as they are while they are read"
            ) from error
        except failed as error:
            preprocess = self._preprocess or (lambda record: record)
            raise naming_urls(blamed(tf, error, self._source.readers(), preprocess), self._names) from error
        except UsageError as error:  # of a file that is damaged
            raise naming_urls(error, self._names) from error
