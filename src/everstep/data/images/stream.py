"""Batches of images that workers decode, resize and augment."""

import os
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from everstep.data import randomness
from everstep.data.arrays import check_batch_size
from everstep.data.formats.images import BadImage
from everstep.data.images.config import ImageAugmentation
from everstep.data.images.sources import Encoded, ImageSource
from everstep.data.images.transforms import Transform, sample_generator
from everstep.data.stream import OwnRows, Part, Stream
from everstep.data.worker_processes import Processes
from everstep.data.workers import Threads, recommended_workers
from everstep.types import Batch

PIECE = 16
"""Images that a worker prepares at a time."""

MOST_THREADS = 1
"""More workers are processes, since threads share Python's lock: two threads prepare half as many small images a
second as two processes, and as many photographs; on 16 cores, 8 threads 0.6 times the photographs of 8 processes."""

_AHEAD = 4  # pieces for each worker that are prepared before they are needed


class ImageStream(Stream):
    """Batches `(images, labels)`: uint8 (n, height, width, channels) and int32 (n,).

        source = ImageSource(ImageDataConfig({"input_path": "photos", "size": 64}))
        stream = ImageStream(source, 32, shuffle=True, seed=0, repeat=True, training=True)

    The order of an epoch follows from (seed, epoch), and what is drawn for an image from (seed, epoch, its number). So
    any position is found without reading what comes before it, and the number and kind of the workers change nothing.

    Images in Parquet files are read a row group at a time: their order is that of shuffled row groups, and within every
    two of them the images are shuffled.

    Args:
      source: The images.
      batch_size: Samples per batch.
      shuffle: Whether each epoch has its own order.
      seed: With the epoch, determines that order, and random changes.
      repeat: Whether epoch follows epoch without end.
      drop_remainder: Whether the last, short batch of an epoch is dropped.
      training: Whether images are changed at random, as the source's config says.

    Raises:
      UsageError: There are too few images for a batch.
    """

    def __init__(
        self,
        source: ImageSource,
        batch_size: int,
        *,
        shuffle: bool = False,
        seed: int = 0,
        repeat: bool = False,
        drop_remainder: bool = False,
        training: bool = False,
    ):
        self._source, self._size = source, len(source)
        check_batch_size(batch_size, self._size, drop_remainder)
        self._batch_size, self._shuffle, self._seed = batch_size, shuffle, seed
        self._full, rest = divmod(self._size, batch_size)
        self._length = self._full + (rest > 0 and not drop_remainder)
        self._loader = PieceLoader(source.transform, seed, training)
        self._processes: Processes | None = None
        super().__init__(repeat=repeat, batches_per_epoch=self._length)

    @property
    def classes(self) -> list[str]:
        """The names of the classes; a label is a position in it."""
        return self._source.classes

    def sample_ids(self) -> list[str] | None:
        """Returns the images' paths in their folder or table; None if they are shuffled."""
        if self._shuffle:
            return None
        return [self._source.samples.name(number).replace(os.sep, "/") for number in self._source.numbers.tolist()]

    @property
    def full_batches(self) -> int:
        """The number of full batches in an epoch; a short one may follow."""
        return self._full

    @property
    def files(self) -> Sequence[str]:
        """The tables and record files; see `Stream.files`."""
        return self._source.samples.files

    @property
    def fingerprint(self) -> Mapping[str, Any]:
        """The classes, and a digest of the images; see `Stream.fingerprint`."""
        return {"classes": ", ".join(self.classes), **self._source.samples.fingerprint()}

    @property
    def reads_rows(self) -> bool:
        """True: images are read by their numbers."""
        return True

    def open(self, epoch: int, batch: int) -> Iterator[Batch]:
        """Yields the epoch's batches from that batch on."""
        return (part.data for part in self.open_rows(epoch, batch, slice))

    def open_rows(self, epoch: int, batch: int, rows: OwnRows) -> Iterator[Part]:
        """Yields these rows of the epoch's batches from that batch on; no other images are read."""
        order = self._order(epoch)
        whole = [order[start : start + self._batch_size] for start in range(0, self._size, self._batch_size)]
        own = [(numbers[rows(len(numbers))].tolist(), len(numbers)) for numbers in whole[batch : self._length]]
        pieces = (list(piece) for numbers, _ in own for piece in _pieces(numbers))
        jobs = ((place, (epoch, piece, self._source.samples.fetch(piece))) for place, piece in enumerate(pieces))
        loaded = self._loaded(jobs)
        try:
            for numbers, size in own:
                images = np.empty((len(numbers), *self._source.transform.shape), np.uint8)
                labels = np.empty(len(numbers), np.int32)
                for start in range(0, len(numbers), PIECE):
                    place = slice(start, start + PIECE)
                    # Copied before the next piece is asked for: then this one's memory is used again.
                    images[place], labels[place] = self._require_usable(next(loaded))
                yield Part((images, labels), size)
        finally:
            loaded.close()

    def _loaded(self, jobs: Iterator[tuple[int, "Job"]]) -> Any:
        """Returns a generator of what the workers make of the jobs, in order."""
        config = self._source.config
        workers = recommended_workers() if config.workers is None else config.workers
        if not workers:
            return (self._loader[job] for _, job in jobs)
        kind = config.worker_kind
        if kind == "threads" or (kind == "auto" and workers <= MOST_THREADS):
            return Threads(self._loader, workers, _AHEAD * workers).map(jobs)
        if self._processes is None or self._processes.broken:
            self._processes = Processes(
                self._loader, workers, _AHEAD * workers, seeded=False, in_place=True, import_program=False
            )
        return self._processes.map(jobs)

    def _require_usable(self, part: "Loaded | Failed") -> "Loaded":
        if isinstance(part, Failed):
            raise self._source.samples.error(part.number, part.reason)
        return part

    def _order(self, epoch: int) -> np.ndarray:
        """Returns the numbers of the images in the order of an epoch."""
        numbers = self._source.numbers
        if not self._shuffle:
            return numbers
        random = randomness.generator(self._seed, epoch)
        chunks = self._source.samples.chunks
        if len(chunks) == 1:
            return numbers[random.permutation(self._size)]
        parts = [numbers[slice(*np.searchsorted(numbers, (chunk.start, chunk.stop)))] for chunk in chunks]
        shuffled = [parts[number] for number in random.permutation(len(parts)).tolist()]
        pairs = [np.concatenate(shuffled[start : start + 2]) for start in range(0, len(shuffled), 2)]
        return np.concatenate([pair[random.permutation(len(pair))] for pair in pairs])


Job = tuple[int, list[int], list[Encoded]]
"""An epoch, the numbers of some images, and the images."""

Loaded = tuple[np.ndarray, np.ndarray]
"""Images and labels."""


class Failed:
    """An image that cannot be used; the stream knows its file.

    Args:
      number: The number of the image.
      reason: What is wrong with it.
    """

    def __init__(self, number: int, reason: str) -> None:
        self.number, self.reason = number, reason


class PieceLoader:
    """Decodes and transforms some images; a worker process has a copy.

    Args:
      transform: From encoded bytes to pixels.
      seed: With the epoch and the number of an image, determines random changes.
      training: Whether there are any.
    """

    def __init__(self, transform: Transform, seed: int, training: bool) -> None:
        self._transform, self._seed = transform, seed
        self._draws = training and transform.augmentation != ImageAugmentation()

    def __getitem__(self, job: Job) -> Loaded | Failed:
        epoch, numbers, encoded = job
        images = np.empty((len(numbers), *self._transform.shape), np.uint8)
        for place, (number, (data, _)) in enumerate(zip(numbers, encoded, strict=True)):
            random = sample_generator(self._seed, epoch, number) if self._draws else None
            try:
                images[place] = self._transform(_content(data), random)
            except BadImage as error:
                return Failed(number, str(error))
            except OSError as error:
                return Failed(number, f"cannot be read: {error.strerror}")
        return images, np.array([label for _, label in encoded], np.int32)


def _content(data: bytes | str) -> bytes:
    if isinstance(data, bytes):
        return data
    with open(data, "rb") as file:
        return file.read()


def _pieces(numbers: Sequence[int]) -> list[Sequence[int]]:
    return [numbers[start : start + PIECE] for start in range(0, len(numbers), PIECE)]
