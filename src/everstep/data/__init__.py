"""Data: streams of batches with a position, one file per source."""

from everstep.data.arrays import ArrayStream
from everstep.data.config import DataConfig
from everstep.data.grain import GrainStream
from everstep.data.input_reader import InputReader
from everstep.data.iterables import IterableStream
from everstep.data.labels import check_labels
from everstep.data.map_dataset import MapDatasetStream
from everstep.data.parquet import ParquetSource, ParquetStream
from everstep.data.py_dataset import PyDatasetStream
from everstep.data.record_sources import pick_dataset_fn
from everstep.data.source import make_stream, record_stream
from everstep.data.stream import Block, Stream
from everstep.data.tf_data import TFDataStream
from everstep.data.tfrecord_writing import TfExampleBuilder, write_arrays, write_images, write_tfrecords
from everstep.data.wrappers import MappedStream

__all__ = [
    "ArrayStream",
    "Block",
    "DataConfig",
    "GrainStream",
    "InputReader",
    "IterableStream",
    "MapDatasetStream",
    "MappedStream",
    "ParquetSource",
    "ParquetStream",
    "PyDatasetStream",
    "Stream",
    "TFDataStream",
    "TfExampleBuilder",
    "check_labels",
    "make_stream",
    "pick_dataset_fn",
    "record_stream",
    "write_arrays",
    "write_images",
    "write_tfrecords",
]
