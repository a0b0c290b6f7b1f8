"""Record files with numbers, and functions to read them back; for the tests of readers."""

import dataclasses
from typing import Any

import numpy as np

from everstep.data import DataConfig, InputReader
from everstep.data.tf_data import load_tensorflow
from everstep.data.tfrecord import TfExampleBuilder, write_tfrecords

tf = load_tensorflow("tests")


@dataclasses.dataclass
class Context:
    """What `tf.distribute` passes to a task if several processes share the work."""

    input_pipeline_id: int = 0
    num_input_pipelines: int = 1
    num_replicas_in_sync: int = 1


def write(folder, count=23, shards=3, compression="", first=0):
    """Writes the numbers in order into one file per shard; returns the glob."""
    folder.mkdir(exist_ok=True)
    for index, part in enumerate(np.array_split(np.arange(first, first + count), shards)):
        made = [TfExampleBuilder().add_ints_feature("id", number) for number in part.tolist()]
        write_tfrecords(folder / f"{index}.tfrecord", made, compression)
    return f"{folder}/*.tfrecord"


def decode(record):
    return tf.io.parse_single_example(record, {"id": tf.io.FixedLenFeature([], tf.int64)})


def parse(features):
    return {"id": features["id"], "half": tf.cast(features["id"], tf.float32) / 2}


def config(path: Any, **fields: Any) -> DataConfig:
    chosen = {"global_batch_size": 4, "is_training": True, "shuffle_buffer_size": 6, "seed": 3}
    return DataConfig(**{**chosen, "input_path": path, **fields})


def reader(path, hooks=None, compression="", **fields):
    """Returns a reader of the numbers, for training unless `fields` has another value."""
    given = {"decoder_fn": decode, "parser_fn": parse, **(hooks or {})}
    return InputReader(config(path, **fields), **given, compression=compression)


def numbers(stream, batches=None):
    """Returns the numbers in the next batches, or in all of them."""
    read = list(stream) if batches is None else [next(stream) for _ in range(batches)]
    return np.concatenate([batch["id"] for batch in read]).tolist()
