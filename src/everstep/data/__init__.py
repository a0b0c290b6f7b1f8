"""Data: streams of batches with a position, one file per source.

A `Stream` yields blocks of batches and knows its position, which a checkpoint keeps. `make_stream` makes one of any
data that a task's `build_inputs` returns.

stream.py           the interface of every source: batches, their position, the rows of one process
source.py           `make_stream`: which source reads which data
config.py           the data section of a task's configuration
nest.py             functions over the nesting of a batch
arrays.py           arrays in memory, and the order of their samples in each epoch
array_file.py       an array that is larger than memory
iterables.py        generators and iterables
py_dataset.py       `keras.utils.PyDataset`
map_dataset.py      datasets of single samples by index
parquet.py          `ParquetSource`: columns of numbers in Parquet files, read by `records/parquet.py`
arrow_columns.py    numbers in Arrow's columns as arrays
sqlite.py           rows of SQLite tables
workers.py          how many workers by default; threads that compute several batches at once
worker_processes.py the processes, and how arrays come back from them
grain.py            Grain
tf_data.py          `tf.data`
tfds.py             TensorFlow Datasets
input_reader.py     `InputReader`, as in TF Model Garden
files.py            paths, globs and URLs
formats/            one reader for each format of files
tfrecord/           TFRecord files: read, inspected, written
tf_variables.py     the variables of a TensorFlow checkpoint
wrappers.py         streams that map, limit, keep or count another one
sparse.py           sparse and ragged tensors on the host
labels.py           class labels that are out of range
randomness.py       the generator of (seed, epoch), from which each source draws its own order
random_states.py    the states of the global random generators, as bytes
arguments.py        numbers and paths that users pass
advice.py           what to change at each kind of source that is too slow
images/             images in files
records/            rows of files by number
text/               text as batches of tokens
"""

from typing import TYPE_CHECKING

from everstep.doors import lazy_names

if TYPE_CHECKING:
    from everstep.data import (
        nest,
        randomness,
        tf_data,
    )
    from everstep.data.advice import how_to_feed_faster
    from everstep.data.arguments import (
        place,
        whole_number,
    )
    from everstep.data.array_file import ArrayFile
    from everstep.data.arrays import (
        ALIGNMENT,
        ArrayStream,
        RowsStream,
        aligned,
        as_rows,
        count_samples,
        is_text,
    )
    from everstep.data.config import DataConfig
    from everstep.data.grain import GrainStream
    from everstep.data.input_reader import InputReader
    from everstep.data.iterables import (
        IterableStream,
        is_one_shot,
    )
    from everstep.data.labels import (
        IGNORED,
        check_labels,
    )
    from everstep.data.map_dataset import MapDatasetStream
    from everstep.data.parquet import (
        ParquetSource,
        ParquetStream,
    )
    from everstep.data.py_dataset import PyDatasetStream
    from everstep.data.source import (
        is_arrays,
        make_stream,
        makes_batches,
        record_stream,
    )
    from everstep.data.sparse import (
        RaggedArray,
        Rows,
        SparseArray,
        first_samples,
        is_sparse_or_ragged,
    )
    from everstep.data.sqlite import SqliteStream
    from everstep.data.stream import (
        BLOCK_SECONDS,
        Block,
        EmptyDataError,
        OwnRows,
        Position,
        Stream,
        part_of,
    )
    from everstep.data.tf_data import (
        TFDataStream,
        is_infinite,
        load_tensorflow,
    )
    from everstep.data.tf_variables import TfVariables
    from everstep.data.tfrecord.dataset import (
        get_tfrecord_dataset,
        get_train_ds,
        get_valid_ds,
    )
    from everstep.data.tfrecord.dataset_writing import (
        write_arrays,
        write_images,
    )
    from everstep.data.tfrecord.folders import get_labels
    from everstep.data.tfrecord.sources import pick_dataset_fn
    from everstep.data.tfrecord.writing import (
        TfExampleBuilder,
        write_tfrecords,
    )
    from everstep.data.wrappers import (
        CountedStream,
        LimitedStream,
        MappedStream,
        class_weighted,
        keep_first_batches,
    )

__getattr__, __dir__ = lazy_names(__name__, __file__)
