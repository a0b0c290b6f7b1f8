"""Predictions in batches, each sample with its own id."""

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from everstep.evaluation import predictions
from everstep.testing.problems import raises_problem

pytestmark = pytest.mark.slow


def double(x):
    assert np.asarray(x).dtype.kind == "f", "ids are never passed to predict"
    return np.asarray(x) * 2


def data(n, size, columns=False):
    x = np.arange(n, dtype=np.float32)
    for first in range(0, n, size):
        part = slice(first, first + size)
        ids = [f"id_{int(value)}".encode() for value in x[part]]
        yield (x[part], x[part] + 1, ids, {"number": x[part].tolist()}) if columns else (x[part], x[part] + 1, ids)


def endless(n, size):
    """Yields the same n samples forever, in batches that wrap around the end of the data."""
    x = itertools.cycle(range(n))
    while True:
        batch = np.array(list(itertools.islice(x, size)), np.float32)
        yield batch, batch + 1, np.ones(size)


def joined(batches):
    return [
        (str(name), float(y), float(p))
        for batch in batches
        for name, y, p in zip(batch.ids, batch.y_true, batch.y_pred, strict=True)
    ]


@settings(deadline=None)
@given(n=st.integers(0, 50), size=st.integers(1, 20))
def test_every_sample_keeps_its_id(n, size):
    found = joined(predictions(double, data(n, size)))
    assert found == [(str(f"id_{row}".encode()), row + 1, 2 * row) for row in range(n)]


@settings(deadline=None)
@given(n=st.integers(1, 50), size=st.integers(1, 20))
def test_endless_batches_are_cut_at_the_limit(n, size):
    found = joined(predictions(double, endless(n, size), limit=n, index=[f"v{row}" for row in range(n)]))
    assert found == [(f"v{row}", row + 1, 2 * row) for row in range(n)]


def test_ids_and_columns_are_cut_with_the_batch():
    *_, last = predictions(double, data(8, 4, columns=True), limit=6)
    assert (last.ids, last.columns, len(last.y_true)) == ([b"id_4", b"id_5"], {"number": [4.0, 5.0]}, 2)


def test_nothing_is_read_beyond_the_limit():
    read = []

    def noted():
        for batch in data(100, 4):
            read.append(len(batch[0]))
            yield batch

    assert len(joined(predictions(double, noted(), limit=8))) == 8
    assert read == [4, 4]


def test_batches_without_ids():
    (batch,) = predictions(double, [(np.ones(3), np.ones(3))])
    assert batch.ids is None
    assert batch.inputs.tolist() == [1, 1, 1]


@pytest.mark.parametrize(
    ("batches", "arguments", "fields"),
    [
        (data(5, 2), {"limit": 6}, {"key": "limit", "received": 6, "reason": "the data ended after 5 samples"}),
        (data(5, 2), {"index": ["a"] * 6}, {"key": "index", "reason": "6 ids for 5 samples"}),
        ([np.ones(3)], {}, {"key": "batches", "reason": "not a ndarray"}),
        ([(np.ones(3),)], {}, {"key": "batches", "reason": "tuple of 1"}),
        ([(np.ones(3), np.ones(2))], {}, {"key": "predict", "reason": "returned 3 predictions for a batch of 2"}),
    ],
)
def test_batches_that_do_not_fit_are_refused(batches, arguments, fields):
    with raises_problem(**fields):
        list(predictions(double, batches, **arguments))


@pytest.mark.backend
def test_a_keras_model_predicts(tmp_path):
    import keras

    from everstep.evaluation import AbsoluteError, Evaluator

    model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1, kernel_initializer="ones")])
    x = np.arange(5, dtype=np.float32)[:, None]
    batches = [(x[:3], x[:3], [b"a", b"b", b"c"]), (x[3:], x[3:] + 1, [b"d", b"e"])]
    for predict in (model.predict_on_batch, model):
        evaluation = Evaluator([AbsoluteError()]).run(predictions(predict, batches), tmp_path, "test")
        assert (evaluation.rows, evaluation.kind) == (5, "regression")
        assert evaluation.means["absolute_error"] == pytest.approx(0.4)
