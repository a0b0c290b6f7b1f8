import numpy as np
import pytest

from everstep.data import DataConfig, RecordStream, record_stream
from everstep.data.records import find_files
from everstep.errors import UsageError

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


def read(stream):
    return np.concatenate(list(stream)).tolist()


def test_natural_order(folder):
    assert read(RecordStream(f"{folder}/*.tfrecord", parse, 7)) == list(range(40))


def test_order_does_not_depend_on_the_global_seed(folder):
    orders = []
    for seed in (None, 1, 2):
        if seed is not None:
            tf.random.set_seed(seed)
        orders.append(read(RecordStream(f"{folder}/*", parse, 7, shuffle_buffer=20, seed=3)))
    assert orders[0] == orders[1] == orders[2] != sorted(orders[0])
    assert sorted(orders[0]) == list(range(40))
    assert read(RecordStream(f"{folder}/*", parse, 7, shuffle_buffer=20, seed=4)) != orders[0]


def test_resuming_parses_no_skipped_record_but_the_last_batch(folder):
    parsed = []

    def counted(record):
        number = parse(record)
        tf.py_function(lambda value: parsed.append(int(value)), [number], [])
        return number

    stream = RecordStream(f"{folder}/*", counted, 5, prefetch=1)
    stream.restore({"epoch": 0, "batch": 6})
    assert next(stream).tolist() == list(range(30, 35))
    assert min(parsed) == 25


def test_parse_is_traced_once(folder):
    traces = []

    def noted(record):
        traces.append(1)
        return parse(record)

    stream = RecordStream(f"{folder}/*", noted, 20, repeat=True)
    for _ in range(6):
        next(stream)
    assert len(traces) == 1


def test_patterns(folder):
    names = [str(folder / f"{index}.tfrecord") for index in range(4)]
    assert find_files(f"{folder}/1.*, {folder}/0.tfrecord") == names[:2]
    assert find_files([f"{folder}/[01].*,{folder}/3.*", f"{folder}/*"]) == names


def test_missing_files_are_named(folder):
    with pytest.raises(UsageError, match=r"no file matches '.*/none-\*'"):
        find_files(f"{folder}/*,{folder}/none-*")
    with pytest.raises(UsageError, match="set input_path"):
        find_files("")


def test_compression(tmp_path):
    write(tmp_path / "a.gz", range(5), "GZIP")
    assert read(RecordStream(str(tmp_path / "a.gz"), parse, 2, compression="GZIP")) == list(range(5))


def test_remainder(folder):
    assert len(list(RecordStream(f"{folder}/*", parse, 7, drop_remainder=True))) == 5
    with pytest.raises(UsageError, match="no batch at all"):
        next(RecordStream(f"{folder}/*", parse, 50, drop_remainder=True, repeat=True))


def test_data_that_became_shorter_is_noticed(folder):
    stream = RecordStream(f"{folder}/*", parse, 10, repeat=True)
    stream.restore({"epoch": 0, "batch": 6})
    with pytest.raises(UsageError, match="data ends before it"):
        next(stream)


def test_batch_size_must_be_positive(folder):
    with pytest.raises(UsageError, match="global_batch_size is 0"):
        RecordStream(f"{folder}/*", parse, 0)


def test_from_config(folder):
    config = DataConfig(input_path=f"{folder}/*", global_batch_size=7, shuffle_buffer_size=20)
    train = record_stream(config, parse, training=True, seed=3)
    assert train.repeat
    first = np.concatenate([next(train) for _ in range(5)])
    direct = RecordStream(f"{folder}/*", parse, 7, shuffle_buffer=20, seed=3, drop_remainder=True)
    assert first.tolist() == read(direct)
    assert read(record_stream(config, parse, training=False, seed=3)) == list(range(40))
