"""What to do where training waits for its data: one sentence for each kind of source."""

from everstep.data.arrays import ArrayStream
from everstep.data.grain import GrainStream
from everstep.data.images.stream import ImageStream
from everstep.data.input_reader import InputStream
from everstep.data.iterables import IterableStream
from everstep.data.map_dataset import MapDatasetStream
from everstep.data.parquet import ParquetStream
from everstep.data.py_dataset import PyDatasetStream
from everstep.data.stream import Stream
from everstep.data.tf_data import TFDataStream
from everstep.data.workers import recommended_workers


def how_to_feed_faster(stream: Stream) -> str:
    """Returns what to change at a source that is slower than the steps."""
    while stream.sources:  # a stream around others; the first one stands for all
        stream = next(iter(stream.sources.values()))
    workers = recommended_workers()
    if isinstance(stream, GrainStream):
        return (
            f"add workers: .to_iter_dataset().mp_prefetch(grain.MultiprocessingOptions(num_workers={workers})), or "
            f"worker_count={workers} of a DataLoader; or store decoded samples, as ArrayRecord"
        )
    if isinstance(stream, ImageStream):
        return (
            f"use {workers} workers or more (workers={workers}), store images at about the size they are scaled to, or "
            "augment less"
        )
    if isinstance(stream, ParquetStream):
        return "name only the columns that are needed, and write them without heavy compression"
    if isinstance(stream, PyDatasetStream):
        return f"add workers: PyDataset(workers={workers}, use_multiprocessing=True); or compute less in __getitem__"
    if isinstance(stream, TFDataStream | InputStream):
        return (
            "decode in parallel, .map(…, num_parallel_calls=tf.data.AUTOTUNE); .cache() after decoding if it fits in "
            "memory; end with .prefetch(tf.data.AUTOTUNE)"
        )
    if isinstance(stream, MapDatasetStream):
        return (
            "one thread reads it: define __getitems__(indices), which reads a batch at once, or wrap it as "
            f"grain.MapDataset.source(dataset) with {workers} worker{'s' if workers > 1 else ''}"
        )
    if isinstance(stream, IterableStream):
        return (
            "one thread reads it: yield larger parts at once, or use a keras.utils.PyDataset or Grain with "
            f"{workers} worker{'s' if workers > 1 else ''}"
        )
    if isinstance(stream, ArrayStream):
        return "keep the arrays in memory and in the dtype that the model reads; a memory map is read from the disk"
    return "read ahead in threads or processes, keep decoded samples in memory, or use a faster format"
