"""`record_stream`: `InputReader` with one function, and all options of the configuration."""

import numpy as np
import pytest

from everstep.data import DataConfig, record_stream
from everstep.data.files import find_files
from everstep.errors import NOTHING
from everstep.testing.problems import raises_problem

tf = pytest.importorskip("tensorflow")


def write(path, ids, compression=""):
    with tf.io.TFRecordWriter(str(path), compression) as writer:
        for number in ids:
            writer.write(tf.io.serialize_tensor(tf.constant(number, tf.int64)).numpy())


def parse(record):
    return tf.reshape(tf.io.parse_tensor(record, tf.int64), [])


@pytest.fixture
def folder(tmp_path):
    for index in range(4):
        write(tmp_path / f"{index}.tfrecord", range(index * 10, index * 10 + 10))
    return tmp_path


def stream(path, parse=parse, training=False, seed=0, compression="", **fields):
    chosen = {"input_path": str(path), "global_batch_size": 7, "shuffle_buffer_size": 20, **fields}
    return record_stream(DataConfig(**chosen), parse, training=training, seed=seed, compression=compression)


def read(batches):
    return np.concatenate(list(batches)).tolist()


def test_evaluation_reads_the_files_in_order(folder):
    assert read(stream(f"{folder}/*.tfrecord")) == list(range(40))


def test_order_does_not_depend_on_the_global_seed(folder):
    chosen = {"training": True, "repeat": False, "drop_remainder": False}
    orders = []
    for seed in (None, 1, 2):
        if seed is not None:
            tf.random.set_seed(seed)
        orders.append(read(stream(f"{folder}/*", seed=3, **chosen)))
    assert orders[0] == orders[1] == orders[2] != sorted(orders[0])
    assert sorted(orders[0]) == list(range(40))
    assert read(stream(f"{folder}/*", seed=4, **chosen)) != orders[0]
    assert read(stream(f"{folder}/*", **chosen, **{"seed": 3})) == orders[0]


def test_options_of_the_configuration_are_used(folder):
    parsed = []

    def counted(record):
        number = parse(record)
        tf.py_function(lambda value: parsed.append(int(value)), [number], [])
        return number

    cached = stream(f"{folder}/*", counted, cache=True, repeat=True, global_batch_size=20)
    assert read(next(cached) for _ in range(4)) == [*range(40), *range(40)]
    assert len(parsed) == 40
    in_turn = stream(f"{folder}/*", cycle_length=2, block_length=3, global_batch_size=40)
    assert next(in_turn)[:9].tolist() == [0, 1, 2, 10, 11, 12, 3, 4, 5]


def test_resuming_parses_no_skipped_record_but_the_last_batch(folder):
    parsed = []

    def counted(record):
        number = parse(record)
        tf.py_function(lambda value: parsed.append(int(value)), [number], [])
        return number

    resumed = stream(f"{folder}/*", counted, global_batch_size=5, prefetch_buffer_size=1)
    resumed.restore({"epoch": 0, "batch": 6})
    assert next(resumed).tolist() == list(range(30, 35))
    assert min(parsed) == 25


def halves(samples):
    """The rows of two processes."""
    return [slice(0, samples // 2), slice(samples // 2, samples)]


@pytest.mark.parametrize("training", [False, True])
def test_a_process_parses_only_its_rows(folder, training):
    """All records are read, as they are shuffled together; together the processes have each batch, in its order."""
    chosen = {"training": training, "repeat": False, "drop_remainder": False, "global_batch_size": 6}
    whole = list(stream(f"{folder}/*", **chosen))
    parsed = [], []
    found = []
    for rank in range(2):

        def counted(record, rank=rank):
            number = parse(record)
            tf.py_function(lambda value: parsed[rank].append(int(value)), [number], [])
            return number

        own = stream(f"{folder}/*", counted, **chosen)
        own.keep_rows(lambda samples, rank=rank: halves(samples)[rank])
        assert own.reads_rows
        found.append(list(own))
        assert own.state() == {"epoch": 0, "batch": len(whole)}
        assert sorted(parsed[rank]) == sorted(read(found[rank]))
    assert [len(rows) for rows in found[0]] == [3] * 6 + [2]
    for one, other, batch in zip(*found, whole, strict=True):
        assert [*one, *other] == batch.tolist()
    assert sorted(parsed[0] + parsed[1]) == list(range(40))


@pytest.mark.parametrize(
    "why", ["random numbers", "cache", "samples of several shapes"], ids=lambda text: text.replace(" ", "-")
)
def test_what_cannot_be_parsed_by_rows_is_read_whole(folder, why):
    functions = {
        "random numbers": lambda record: parse(record) + tf.random.uniform([], 0, 2, tf.int64, seed=3),
        "cache": parse,
        "samples of several shapes": lambda record: tf.zeros(tf.reshape(parse(record), [1]) % 1, tf.int64),
    }
    own = stream(f"{folder}/*", functions[why], global_batch_size=6, cache=why == "cache")
    assert not own.reads_rows
    own.keep_rows(lambda samples: slice(0, samples // 2))
    assert len(next(own)) == 3


def test_parse_is_traced_once(folder):
    traces = []

    def traced(record):
        traces.append(1)
        return parse(record)

    repeated = stream(f"{folder}/*", traced, global_batch_size=20, repeat=True)
    for _ in range(6):
        next(repeated)
    assert len(traces) == 1


def test_patterns_of_files(folder):
    names = [str(folder / f"{index}.tfrecord") for index in range(4)]
    assert find_files(f"{folder}/1.*, {folder}/0.tfrecord") == names[:2]
    (folder / ".everstep-4.tfrecord").write_bytes(b"half a rec")
    assert find_files([f"{folder}/[01].*,{folder}/3.*", f"{folder}/*"]) == names, "drafts are not read"


@pytest.mark.parametrize(
    ("patterns", "received", "reason"),
    [
        ("{0}/*,{0}/none-*", "{0}/none-*", "no file matches"),
        ("", NOTHING, "names no record files"),
        ("nosuch://x/*", "nosuch://x/*", "unknown kind of store 'nosuch'"),
    ],
)
def test_missing_files_are_named(folder, patterns, received, reason):
    received = received if received is NOTHING else received.format(folder)
    with raises_problem(key="input_path", received=received, reason=reason) as refused:
        find_files(patterns.format(folder))
    assert "\n" not in str(refused.value)


def test_compressed_files(tmp_path):
    write(tmp_path / "a.gz", range(5), "GZIP")
    assert read(stream(tmp_path / "a.gz", compression="GZIP")) == list(range(5))


def test_the_remainder_is_dropped(folder):
    assert len(list(stream(f"{folder}/*", drop_remainder=True))) == 5
    with raises_problem(reason="no batch at all"):
        next(stream(f"{folder}/*", training=True, global_batch_size=50))


def test_data_that_became_shorter_is_detected(folder):
    shorter = stream(f"{folder}/*", global_batch_size=10, repeat=True)
    shorter.restore({"epoch": 0, "batch": 6})
    with raises_problem(reason="data ends before it"):
        next(shorter)
