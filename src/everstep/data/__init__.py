"""Data: streams of batches with a position, one file per source.

A `Stream` yields blocks of batches and knows its position, which a checkpoint keeps. `make_stream` makes one of any
data that a task's `build_inputs` returns.

stream.py            the interface of every source: batches, position, blocks of one shape, the rows of one process;
                     `fingerprint` and `files`, by which a resume knows the data
source.py            `make_stream`: which source reads which data, and its defaults: training data is shuffled,
                     repeated, and its last short batch dropped; refuses lists of pairs, DatasetDict
config.py            the data section's keys: batch size, `drop_remainder`, `repeat`, `shuffle_buffer_size`, `cache`,
                     `cycle_length`, `seed`; which may change on a resume
nest.py              the nesting of a batch: dicts, tuples, lists; refuses to stack arrays of other shapes
host_arrays.py       arrays and tensors of any backend as NumPy arrays
arrays.py            arrays in memory: the order of samples in each epoch, batches, the last short one if it is kept
                     (the default is in `source.py`; in `fit` it is kept); "different numbers of samples"
array_file.py        an array that is larger than memory, in a file below EVERSTEP_CACHE_DIR
iterables.py         generators, iterables, PyTorch's DataLoader: never shuffled here, resumed by reading again; an
                     iterator that can be read only once
py_dataset.py        `keras.utils.PyDataset`: workers, `on_epoch_end`, order of batches, epochs that grow or get
                     shorter; without threads where its first batch draws from `np.random`, which `randomness.py`
                     detects
map_dataset.py       datasets with `__len__` and `__getitem__` (PyTorch, Hugging Face): order, stacking; samples of
                     other shapes, None
parquet.py           `ParquetSource`: columns of numbers in Parquet files, shuffled by row groups; files are opened by
                     `records/parquet.py`
arrow_columns.py     Hugging Face and Arrow columns as arrays: which datasets are read by columns, lists, missing
                     values
sqlite.py            rows of SQLite tables: which columns, order; views, text and NULL are refused
workers.py           how many workers by default (cores - 1, at most 16); threads that compute several batches at
                     once; when processes are not possible
worker_processes.py  worker processes: how they start, end and return arrays; "a worker process has ended", cannot be
                     pickled
grain.py             Grain: `DataLoader`, `MapDataset`, `IterDataset`; batches of its own or cut here; a saved
                     position that does not fit
tf_data.py           a user's `tf.data.Dataset`: batched or not, repeated or not; shuffles without a seed, whose order
                     no resume can repeat; hides GPUs from TensorFlow
tfds.py              TensorFlow Datasets: only what is prepared on this machine, nothing is downloaded; splits,
                     features that are not decoded
input_reader.py      `InputReader` (TF Model Garden): decode, parse, filter, batch; shuffle buffer, cache, prefetch,
                     the position; a user's `combine_fn` joins several sources; batches that replicas cannot share
files.py             paths, globs, lists and URLs: "no file matches", sorted by name, empty files; `.gz`, `.xz`,
                     `.bz2` are unpacked by suffix, for readers that ask for it (TFRecord does not)
formats/             one reader for each format of files: images, `.npy`, CSV, Parquet, TFRecord
tfrecord/            TFRecord files: which, in which order, compression; folders of them; inspected, written
tf_variables.py      the variables of a TensorFlow checkpoint
wrappers.py          streams that map, limit (`limit_batches`), keep (`overfit_batches`) or count another one;
                     `class_weight`
sparse.py            sparse and ragged tensors: which kinds are taken, which are refused
labels.py            class labels that are out of range, floats or complex: refused before the first step
named_sources.py     sources that a run's record names, so that `eval` and `predict` open them again
names.py             the names of classes and samples, by the attributes that Keras, torchvision and Hugging Face use
randomness.py        the generator of (seed, epoch), from which each source draws its order; what a generator or
                     PyDataset draws from `random` and `np.random` is seeded, and detected
random_states.py     the states of Python's and NumPy's global generators, as bytes
arguments.py         numbers and paths that users pass: "must be a whole number", NumPy's integers
advice.py            what to change at each kind of source that is too slow; when it is said: `tracking/data_wait.py`
images/              images in files: folders, tables, TFRecords; sizes, augmentation, workers
records/             rows of files by number: JSON lines, CSV, Parquet, text, Hugging Face datasets
text/                text as batches of tokens: tokenizers, packing, chat templates
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
    from everstep.data.host_arrays import host_array
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
    from everstep.data.named_sources import (
        named_path,
        open_source,
        source_record,
    )
    from everstep.data.names import class_names, file_paths
    from everstep.data.parquet import (
        ParquetSource,
        ParquetStream,
    )
    from everstep.data.py_dataset import PyDatasetStream
    from everstep.data.source import (
        is_arrays,
        left_out,
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
