"""Data: streams of batches that know their position, one file per source."""

from everstep.data.arrays import ArrayStream
from everstep.data.block import Block
from everstep.data.config import DataConfig
from everstep.data.files import pick_dataset_fn
from everstep.data.grain_stream import GrainStream
from everstep.data.input_reader import InputReader
from everstep.data.iterables import IterableStream
from everstep.data.labels import check_labels
from everstep.data.map_dataset import MapDatasetStream
from everstep.data.py_dataset import PyDatasetStream
from everstep.data.source import make_stream, record_stream
from everstep.data.stream import Stream
from everstep.data.tf_data import TFDataStream

__all__ = [
    "ArrayStream",
    "Block",
    "DataConfig",
    "GrainStream",
    "InputReader",
    "IterableStream",
    "MapDatasetStream",
    "PyDatasetStream",
    "Stream",
    "TFDataStream",
    "check_labels",
    "make_stream",
    "pick_dataset_fn",
    "record_stream",
]
