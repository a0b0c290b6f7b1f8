"""Which stream reads which source, and how the configuration and the caller decide."""

import subprocess
import sys

import numpy as np
import pytest

from everstep.data import ArrayStream, DataConfig, IterableStream, TFDataStream, make_stream
from everstep.errors import UsageError
from everstep.testing.problems import raises_problem

pytestmark = pytest.mark.slow

X, Y = np.arange(20).reshape(10, 2), np.arange(10)


def stream(source, training=False, run_seed=0, **config):
    return make_stream(source, DataConfig(global_batch_size=4, **config), training=training, seed=run_seed)


@pytest.mark.parametrize("source", [X, (X, Y), [X, Y], {"x": X, "y": Y}, (X, None), ({"x": X}, Y, None)])
def test_arrays_in_any_nesting(source):
    assert isinstance(stream(source), ArrayStream)


def test_evaluation_reads_every_sample_once_in_order():
    evaluation = stream(Y)
    assert np.concatenate(list(evaluation)).tolist() == list(range(10))


def test_training_shuffles_repeats_and_drops():
    training = stream(Y, training=True)
    assert training.repeat
    assert training.batches_per_epoch == 2
    assert len({tuple(next(training)) for _ in range(8)}) == 8


def test_the_configuration_overrides_the_caller():
    assert next(stream(Y, training=True, is_training=False)).tolist() == [0, 1, 2, 3]
    assert stream(Y, drop_remainder=True).batches_per_epoch == 2
    assert not stream(Y, training=True, repeat=False).repeat


def test_the_configurations_seed_overrides_the_runs():
    first = [next(stream(Y, training=True, run_seed=s, **c)).tolist() for s, c in [(1, {}), (2, {}), (2, {"seed": 1})]]
    assert first[0] == first[2] != first[1]


def test_streams_are_returned_unchanged():
    made = IterableStream([X])
    assert stream(made) is made


def test_functions_and_iterables():
    assert isinstance(stream(lambda: iter([X])), IterableStream)
    assert isinstance(stream(iter([X])), IterableStream)
    assert isinstance(stream([([1, 2],)]), IterableStream)


def test_a_one_shot_iterator_is_refused_for_training():
    with raises_problem(reason="one-shot"):
        stream(iter([X]), training=True)
    assert next(stream(iter([X]), training=True, repeat=False)).shape == (10, 2)


def test_tf_data_datasets_of_batches_and_of_samples():
    tf = pytest.importorskip("tensorflow")
    dataset = tf.data.Dataset.from_tensor_slices((X, Y))
    assert isinstance(stream(dataset.batch(5)), TFDataStream)
    assert [len(y) for _, y in stream(dataset.batch(5))] == [5, 5]
    assert [len(y) for _, y in stream(dataset)] == [4, 4, 2]
    assert stream(dataset, training=True).batches_per_epoch == 2


@pytest.mark.parametrize(
    ("source", "kind"),
    [
        (5, "type int"),
        ("path", "type str"),
        (None, "type NoneType"),
        ({"x": 1}, "a dict of int"),
        ({}, "nothing"),
    ],
)
def test_other_types_are_refused(source, kind):
    with raises_problem(reason=f"cannot read data from .*{kind}", remedy="pass NumPy arrays"):
        stream(source)


@pytest.mark.parametrize("pairs", [[(X[0], Y[0]), (X[1], Y[1])], [(X, Y), (X, Y, Y)]], ids=["samples", "batches"])
def test_a_list_of_pairs_is_refused_with_what_to_pass_instead(pairs):
    with pytest.raises(UsageError) as refused:
        stream(pairs)
    assert "list of (x, y) pairs" in refused.value.reason
    assert "np.stack([x for x, y in pairs])" in refused.value.remedy
    assert "lambda: pairs" in refused.value.remedy


def test_no_backend_is_imported_for_arrays():
    code = """
import sys, numpy
from everstep.data import DataConfig, make_stream
next(make_stream((numpy.zeros(9), numpy.zeros(9)), DataConfig(), training=False, seed=0))
next(make_stream(lambda: [numpy.zeros(9)], DataConfig(), training=False, seed=0))
print(sorted({'keras', 'jax', 'tensorflow', 'torch'} & set(sys.modules)))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
