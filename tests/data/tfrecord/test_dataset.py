"""TFRecord datasets: records, orders, positions, samples, and the errors for data that cannot be read."""

import functools
import logging
import os
import struct

import keras
import numpy as np
import pytest

import everstep
from everstep.checkpoint.remote import publish
from everstep.checkpoint.remote.store import Store
from everstep.data.formats.tfrecord import frames
from everstep.data.tfrecord import get_labels, get_tfrecord_dataset, get_train_ds, get_valid_ds, inspect, write_arrays
from everstep.data.tfrecord.sources import NoRecordFiles
from everstep.errors import NOTHING, UsageError
from everstep.testing.problems import raises_problem

pytestmark = pytest.mark.slow

tf = pytest.importorskip("tensorflow")

CLASSES = np.array(["cat", "dog", "owl"])
TRAIN, VALID = 103, 21


def read(example, label_list, dtype="float32"):
    features = {"x": tf.io.FixedLenFeature([2], tf.float32), "label": tf.io.FixedLenFeature([], tf.string)}
    features["number"] = tf.io.FixedLenFeature([], tf.int64)
    parsed = tf.io.parse_single_example(example, features)
    label = tf.cast(tf.where(tf.constant(label_list) == parsed["label"])[0], dtype)
    return {"x": parsed["x"], "number": parsed["number"]}, label


READ = functools.partial(read, label_list=list(CLASSES))


def write(folder):
    random = np.random.default_rng(1)
    for split, count, shards in (("train", TRAIN, 4), ("valid", VALID, 2)):
        label = CLASSES[np.sort(np.arange(count) % 3)]  # in the order of classes, as datasets often are
        columns = {"x": random.normal(size=(count, 2)).astype("float32"), "number": np.arange(count), "label": label}
        write_arrays(folder, split, columns, shards, shuffle=False)
    return folder


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return write(tmp_path_factory.mktemp("records"))


@pytest.fixture
def damaged(tmp_path):
    """A copy of the dataset that a test may damage, and one of its files."""
    return write(tmp_path), tmp_path / "train-00001-of-00004.tfrec"


def numbers(batches):
    return [batch[0]["number"].tolist() for batch in batches]


def flat(batches):
    return [number for batch in numbers(batches) for number in batch]


def test_labels_of_a_dataset_and_of_a_subset(folder, tmp_path):
    assert get_labels(folder, 100) == get_labels(f"{folder}/", 10) == (3, ["cat", "dog", "owl"])
    (tmp_path / "whole").mkdir()
    (tmp_path / "whole-subset-10").mkdir()
    (tmp_path / "whole" / "labels.txt").write_text("a\n b \n\nc\n")
    (tmp_path / "whole-subset-10" / "labels.txt").write_text("a\n")
    assert get_labels(tmp_path / "whole") == (3, ["a", "b", "c"])
    assert get_labels(tmp_path / "whole", 10) == (1, ["a"])
    (tmp_path / "whole" / "labels.txt").write_text("a\nb\na\n")
    with raises_problem(key="dataset", reason="names the class 'a' twice"):
        get_labels(tmp_path / "whole")
    with raises_problem(NoRecordFiles, key="dataset", reason="has no labels.txt"):
        get_labels(tmp_path)


def test_train_epochs(folder):
    """Each epoch has another order, the same in every process; full batches only; files are interleaved."""
    first, again = get_train_ds(folder, READ, 10), get_train_ds(folder, READ, 10)
    epochs = [numbers(first) for _ in range(3)]
    assert epochs == [numbers(again) for _ in range(3)]
    assert all(len(epoch) == len(first) == 10 and {len(batch) for batch in epoch} == {10} for epoch in epochs)
    assert all(len({n for batch in epoch for n in batch}) == 100 for epoch in epochs)
    assert len({str(epoch) for epoch in epochs}) == 3
    assert len({number % 3 for number in epochs[0][0]} | {n // 35 for n in epochs[0][0]}) > 2
    assert numbers(get_train_ds(folder, READ, 10, seed=1)) != epochs[0]


def test_validation_data_is_in_order_and_complete(folder):
    valid = get_valid_ds(folder, READ, 8)
    found = flat(valid)
    assert found == flat(valid) == [*range(0, VALID, 2), *range(1, VALID, 2)]  # file by file
    assert len(valid) == 3


def test_resuming_at_any_position(folder):
    """A position in any epoch gives the batches that followed; loops and `dataset()` do not move it."""
    stream = get_train_ds(folder, READ, 10)
    wanted = numbers(next(stream) for _ in range(25))
    for position in (0, 7, 10, 13, 24):
        again = get_train_ds(folder, READ, 10)
        again.restore({"epoch": position // 10, "batch": position % 10})
        assert numbers(next(again) for _ in range(25 - position)) == wanted[position:]
    state = stream.state()
    assert numbers(stream) == wanted[:10]
    assert numbers(stream.dataset(epoch=1).as_numpy_iterator()) == wanted[10:20]
    assert stream.state() == state == {"epoch": 2, "batch": 5}


def test_only_training_data_is_augmented(folder):
    def moved(x, y):
        return {**x, "x": x["x"] + 100}, y

    train, valid = (get_tfrecord_dataset(folder, READ, 5, split, moved) for split in ("train", "valid"))
    assert next(iter(train))[0]["x"].min() > 50
    assert next(iter(valid))[0]["x"].max() < 50
    assert numbers(get_tfrecord_dataset(folder, READ, 5, is_train=False)) == numbers(valid)


def test_percentage(folder):
    """A sample is the same each time, has the exact size, and contains every smaller sample."""

    def sample(percentage):
        return set(flat(get_tfrecord_dataset(folder, READ, 1, "train", percentage=percentage)))

    tenth, third, most = sample(10), sample(33.3), sample(99)
    assert [len(tenth), len(third), len(most)] == [10, 34, 102]
    assert tenth < third < most
    assert sample(10) == tenth
    assert len(get_train_ds(folder, READ, 5, 10)) == 2
    assert len(flat(get_valid_ds(folder, READ, 5, 50))) == round(VALID / 2)


def test_a_subset_folder_is_read_as_a_whole(folder, tmp_path):
    os.symlink(folder, tmp_path / "data")
    write_arrays(
        tmp_path / "data-subset-20", "train", {"x": np.zeros((3, 2), "f"), "number": np.arange(7, 10), "label": CLASSES}
    )
    assert sorted(flat(get_train_ds(tmp_path / "data", READ, 3, 20))) == [7, 8, 9]


def test_both_folders_are_named_where_neither_a_subset_nor_the_whole_exists(tmp_path):
    for call in (lambda: get_labels(tmp_path / "none", 10), lambda: get_train_ds(tmp_path / "none", READ, 3, 10)):
        with pytest.raises(FileNotFoundError) as missing:
            call()
        assert missing.value.received == f"{tmp_path}/none"
        assert f"{tmp_path}/none-subset-10" in missing.value.reason


def test_fit_reads_it(folder, tmp_path):
    """As any stream."""
    inputs = {"x": keras.Input((2,), name="x"), "number": keras.Input((), name="number", dtype="int32")}
    model = keras.Model(inputs, keras.layers.Dense(3, "softmax")(inputs["x"]))
    model.compile("sgd", "sparse_categorical_crossentropy")
    valid = get_valid_ds(folder, READ, 10)
    history = everstep.fit(model, get_train_ds(folder, READ, 10), epochs=2, verbose=0, validation_data=valid)
    assert history.epoch == [0, 1]


# -- refused -----------------------------------------------------------------------------------------------------------


def other(example, size):
    return example


@pytest.mark.parametrize(
    ("call", "key", "received"),
    [
        (lambda f: get_train_ds(f, READ, 200), "global_batch_size", 200),
        (lambda f: get_train_ds(f, READ, 20, 10), "global_batch_size", 20),
        (lambda f: get_train_ds(f, READ, 0), "global_batch_size", 0),
        (lambda f: get_train_ds(f, READ, 5, 0), "percentage", 0),
        (lambda f: get_train_ds(f, READ, 5, 101), "percentage", 101),
        (lambda f: get_tfrecord_dataset(f, READ, 5, "test"), "split", "test"),
        (lambda f: get_tfrecord_dataset(f, READ, 5), "split", {"split": None, "is_train": None}),
        (lambda f: get_train_ds(f, other, 5), "preprocessing", NOTHING),
        (lambda f: get_train_ds(f, lambda record: record, 5), "preprocessing", NOTHING),
        (lambda f: get_train_ds(f, READ, 5, compression="ZIP"), "compression", "ZIP"),
        (lambda f: get_train_ds(f, READ, 5, on_corrupt="ignore"), "on_corrupt", "ignore"),
        (lambda f: get_train_ds(f, READ, 5, on_corrupt="skip", compression="GZIP"), "on_corrupt", "skip"),
    ],
)
def test_invalid_arguments_are_refused(folder, call, key, received):
    with pytest.raises(UsageError) as refused:
        call(folder)
    assert (refused.value.key, refused.value.received) == (key, received)
    assert "\n" not in str(refused.value)


def test_missing_files_are_a_file_not_found_error(tmp_path):
    (tmp_path / "train_1.csv").write_text("")
    for path in (tmp_path, tmp_path / "nowhere"):
        with pytest.raises(FileNotFoundError) as refused:
            get_train_ds(path, READ, 5)
        assert isinstance(refused.value, UsageError)
        assert refused.value.received == str(path)


def test_file_names_of_the_older_convention(folder, tmp_path):
    for name in ("train_00001.tfrec", "valid_00001.tfrec"):
        (tmp_path / name).write_bytes(sorted(folder.glob("train-*"))[0].read_bytes())
    assert len(flat(get_valid_ds(tmp_path, READ, 5))) == 26


def test_an_unknown_label_is_reported_with_its_record(folder):
    """The error has the record's number and its short features."""
    two = functools.partial(read, label_list=["cat", "dog"])
    records, rows = get_train_ds(folder, two, 5), get_train_ds(folder, two, 5)
    rows.keep_rows(lambda samples: slice(0, 3))  # as where several processes share a batch
    for read_epoch in (lambda: list(records), lambda: rows.block(len(rows), seconds=60)):
        with pytest.raises(UsageError) as refused:
            read_epoch()
        assert "preprocessing fails on record" in str(refused.value)
    assert "label='owl'" in str(refused.value)
    assert "is the label in labels.txt?" in str(refused.value)


def test_samples_that_cannot_be_batched(folder):
    def ragged(example):
        return tf.zeros([READ(example=example)[0]["number"] % 2]), 0

    with raises_problem(reason="read, but cannot be batched"):
        list(get_train_ds(folder, ragged, 5))


# -- damaged -----------------------------------------------------------------------------------------------------------


def flip(path, offset):
    data = bytearray(path.read_bytes())
    data[offset] ^= 1
    path.write_bytes(data)


def test_a_damaged_record(damaged, caplog):
    """The error names the file and the byte; `skip` skips only that record."""
    folder, path = damaged
    whole = sorted(flat(get_train_ds(folder, READ, 1)))
    frame = frames(path)[3]
    flip(path, frame.data + 5)
    with pytest.raises(UsageError) as refused:
        list(get_train_ds(folder, READ, 1))
    assert refused.value.received == str(path)
    assert f"at byte {frame.data}, after 3 good records" in refused.value.reason
    with caplog.at_level(logging.WARNING):
        found = sorted(flat(get_train_ds(folder, READ, 1, on_corrupt="skip")))
    assert [number for number in whole if number not in found] == [13]  # the fourth of the second file of four
    assert f"skipped: {str(path)!r} at byte {frame.data}, record 3" in caplog.text


def test_a_damaged_length(damaged):
    """Records after a damaged length cannot be found: `skip` skips them, too."""
    folder, path = damaged
    frame = frames(path)[20]
    flip(path, frame.offset)
    with raises_problem(key="dataset", reason=f"at byte {frame.offset}: the length of a record is damaged"):
        get_train_ds(folder, READ, 1)
    assert len(get_train_ds(folder, READ, 1, on_corrupt="skip")) == TRAIN - 6


def test_truncated_and_compressed_files(damaged):
    folder, path = damaged
    data = path.read_bytes()
    path.write_bytes(data[:-7])
    with raises_problem(key="dataset", reason="the file ends inside a record", remedy="on_corrupt='skip'"):
        get_train_ds(folder, READ, 1)
    path.write_bytes(b"\x1f\x8b" + struct.pack("<QQ", 1, 2))
    with raises_problem(key="dataset", reason="at byte 0.*it is a gzip file: specify compression='GZIP'"):
        get_train_ds(folder, READ, 1)
    with raises_problem(key="dataset", reason="has no whole record"):
        get_train_ds(folder, READ, 1, on_corrupt="skip")


def test_files_that_change_during_reading(damaged):
    folder, path = damaged
    stream = get_train_ds(folder, READ, 1)
    data = path.read_bytes()
    path.write_bytes(data[: frames(path)[5].offset])
    with raises_problem(key="dataset", reason="record files have changed: they had 103 records"):
        list(stream)


# -- in a store --------------------------------------------------------------------------------------------------------


def test_records_in_a_store(folder, monkeypatch, tmp_path):
    """The batches are the same, and damaged files are named by their URLs."""
    monkeypatch.setenv("EVERSTEP_CACHE_DIR", str(tmp_path / "cache"))
    url = "memory://records/set"
    publish(folder, url)
    assert get_labels(url, 20) == get_labels(folder)
    assert numbers(get_train_ds(url, READ, 5, 40)) == numbers(get_train_ds(folder, READ, 5, 40))
    assert get_train_ds(url, READ, 5).facts == get_train_ds(folder, READ, 5).facts
    publish(folder / "train-00000-of-00004.tfrec", f"{url}-subset-10/train-0.tfrec")
    assert len(get_train_ds(url, READ, 1, 10)) == 26
    with raises_problem(NoRecordFiles, key="dataset", received="memory://records/none", reason="no such folder"):
        get_train_ds("memory://records/none", READ, 5)
    data = bytearray((folder / "train-00000-of-00004.tfrec").read_bytes())
    data[frames(folder / "train-00000-of-00004.tfrec")[2].data + 5] ^= 1
    Store("memory://records/bad").put_bytes("train-0.tfrec", bytes(data))
    with raises_problem(key="dataset", reason=r"at byte \d+, after 2 good records") as refused:
        list(get_train_ds("memory://records/bad", READ, 1))
    assert refused.value.received == "memory://records/bad/train-0.tfrec"
    assert len(get_train_ds("memory://records/bad", READ, 1, on_corrupt="skip")) == 25
    found = inspect(["memory://records/bad"])
    assert [(name, count) for name, count, _ in found.files] == [("memory://records/bad/train-0.tfrec", 25)]
    assert found.damages[0].file == "memory://records/bad/train-0.tfrec"
    with raises_problem(NoRecordFiles, reason="there is no record file"):
        inspect(["memory://records/none"])
