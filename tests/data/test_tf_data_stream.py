"""`tf.data` datasets: lengths, later passes, failed batches, and GPUs hidden from TensorFlow."""

import builtins
import gc
import weakref

import numpy as np
import pytest

from everstep.data import TFDataStream
from everstep.data.tf_data import load_tensorflow
from everstep.testing.problems import raises_problem

tf = pytest.importorskip("tensorflow")


def numbers(n=7, **shuffle):
    data = tf.data.Dataset.range(n)
    return (data.shuffle(n, **shuffle) if shuffle else data).batch(2)


def test_batches_are_numpy_arrays():
    batch = next(TFDataStream(tf.data.Dataset.from_tensor_slices({"a": [1, 2], "t": ["x", "y"]}).batch(2)))
    assert isinstance(batch["a"], np.ndarray)
    assert batch["t"].tolist() == [b"x", b"y"]


def test_only_finite_datasets_have_a_known_length():
    assert TFDataStream(numbers()).batches_per_epoch == 4
    assert TFDataStream(numbers().repeat()).batches_per_epoch is None
    assert TFDataStream(numbers().filter(lambda _: True)).batches_per_epoch is None


def test_an_infinite_dataset_has_one_epoch():
    stream = TFDataStream(numbers().repeat(), repeat=True)
    for _ in range(9):
        next(stream)
    assert stream.state() == {"epoch": 0, "batch": 9}
    resumed = TFDataStream(numbers().repeat(), repeat=True)
    resumed.restore(stream.state())
    assert next(resumed).tolist() == next(stream).tolist() == [2, 3]


@pytest.mark.parametrize("end", [lambda data: data, lambda data: data.filter(lambda _: True)], ids=["known", "unknown"])
def test_a_later_pass_over_an_infinite_cached_dataset(end):
    """The first pass cannot be read to its end."""
    streams = [
        TFDataStream(end(tf.data.Dataset.range(7).cache().shuffle(7, seed=1).repeat().batch(2)), repeat=True)
        for _ in range(2)
    ]
    streams[0].restore({"epoch": 1, "batch": 0})
    ahead = [next(streams[0]).tolist() for _ in range(9)]
    streams[1].restore({"epoch": 1, "batch": 5})
    assert [next(streams[1]).tolist() for _ in range(4)] == ahead[5:]


def test_an_empty_dataset_is_refused():
    with raises_problem(reason="no batch at all"):
        next(TFDataStream(numbers(0), repeat=True))


def test_data_that_became_shorter_is_detected():
    with raises_problem(reason="data ends before it"):
        TFDataStream(numbers(), repeat=True).restore({"epoch": 0, "batch": 9})
    unknown = TFDataStream(numbers().filter(lambda _: True), repeat=True)
    unknown.restore({"epoch": 0, "batch": 9})
    with raises_problem(reason="data ends before it"):
        next(unknown)


def test_shuffled_evaluation_data_can_be_read_again():
    stream = TFDataStream(numbers(seed=1))
    for _ in range(3):
        assert sorted(np.concatenate(list(stream))) == list(range(7))
        stream.restore({"epoch": 0, "batch": 0})


def test_a_batch_that_failed_is_read_again():
    failures = [OSError("network")]

    def check(number):
        if number == 4 and failures:
            raise failures.pop()
        return number

    def checked(number):
        return tf.py_function(check, [number], tf.int64)

    stream = TFDataStream(tf.data.Dataset.range(8).map(checked).batch(2), repeat=True)
    assert [next(stream).tolist() for _ in range(2)] == [[0, 1], [2, 3]]
    with pytest.raises(tf.errors.UnknownError, match="network"):
        next(stream)
    assert next(stream).tolist() == [4, 5]


def test_gpus_are_hidden_from_other_backends(monkeypatch):
    hidden = []
    monkeypatch.setattr(tf.config, "set_visible_devices", lambda devices, kind: hidden.append((devices, kind)))
    monkeypatch.setenv("KERAS_BACKEND", "tensorflow")
    load_tensorflow("a test")
    assert hidden == []
    monkeypatch.setenv("KERAS_BACKEND", "jax")
    assert load_tensorflow("a test") is tf
    assert hidden == [([], "GPU")]


def test_tensorflow_keeps_gpus_that_it_already_uses(monkeypatch):
    def refuse(devices, kind):
        raise RuntimeError("Visible devices cannot be modified after being initialized")

    monkeypatch.setattr(tf.config, "set_visible_devices", refuse)
    monkeypatch.setenv("KERAS_BACKEND", "jax")
    assert load_tensorflow("a test") is tf


def test_missing_tensorflow_names_the_extra(monkeypatch):
    original = builtins.__import__

    def without(name, *args, **kwargs):
        if name == "tensorflow":
            raise ImportError(name)
        return original(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", without)
    with raises_problem(remedy=r"pip install .*\[tensorflow\]'"):
        load_tensorflow("reading TFRecord files")


def test_which_epochs_never_end():
    def odd(number):
        return number % 2 == 1

    finite, repeated = tf.data.Dataset.range(4), tf.data.Dataset.range(4).repeat()
    for dataset, expected in (
        (finite, False),
        (finite.filter(odd), False),
        (repeated, True),
        (repeated.filter(odd), True),
        (repeated.take(3).filter(odd), False),
        (repeated.filter(odd).take(3), False),
        (tf.data.Dataset.zip((repeated.filter(odd), finite)), False),
    ):
        stream = TFDataStream(dataset.batch(2))
        assert stream.epoch_never_ends == stream.never_ends == expected
        assert TFDataStream(dataset.batch(2), repeat=True).never_ends


def test_a_dropped_stream_releases_its_pipeline_at_once():
    """TensorFlow's iterator holds threads and buffers, and the older it is, the longer it may take to end."""
    stream = TFDataStream(numbers())
    next(stream)
    pipeline = weakref.ref(stream._live)
    gc.disable()
    try:
        del stream
        assert pipeline() is None
    finally:
        gc.enable()
