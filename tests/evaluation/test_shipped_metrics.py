"""The shipped metrics against plain loops over samples and pixels, on every shape; and on empty masks."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from everstep.evaluation import (
    TNR,
    TPR,
    AbsoluteError,
    Accuracy,
    CrossEntropy,
    DiceScore,
    IoUScore,
    Precision,
    RelativeError,
    SoftDice,
    SoftIoUScore,
    SquaredError,
    TopK,
)
from everstep.testing.problems import raises_problem

pytestmark = pytest.mark.slow

MASKS = [IoUScore, SoftIoUScore, DiceScore, SoftDice, TPR, TNR, Precision]
EVERY = [*MASKS, CrossEntropy, Accuracy, AbsoluteError, SquaredError, RelativeError]


def values(metric, y_true, y_pred):
    return metric.function(np.asarray(y_true), np.asarray(y_pred))


# -- plain loops -----------------------------------------------------------------------------------------------------


def counts(true, pred):
    pairs = list(zip(true.reshape(-1).tolist(), pred.reshape(-1).tolist(), strict=True))
    tp = sum(t > 0.5 and p > 0.5 for t, p in pairs)
    fp = sum(t <= 0.5 and p > 0.5 for t, p in pairs)
    fn = sum(t > 0.5 and p <= 0.5 for t, p in pairs)
    return tp, fp, fn, len(pairs) - tp - fp - fn


def soft(true, pred):
    pairs = list(zip(true.reshape(-1).tolist(), pred.reshape(-1).tolist(), strict=True))
    return math.fsum(t * p for t, p in pairs), math.fsum(t for t, _ in pairs), math.fsum(p for _, p in pairs)


def share(part, whole, agree):
    return part / whole if whole else float(agree)


def by_definition(metric, true, pred):
    """What a metric is for one sample, by its definition."""
    tp, fp, fn, tn = counts(true, pred)
    common, real, found = soft(true, pred)
    return {
        IoUScore: lambda: (tp + 1e-3) / (tp + fp + fn + 1e-3),
        DiceScore: lambda: (2 * tp + 1e-6) / (2 * tp + fp + fn + 1e-6),
        SoftIoUScore: lambda: (common + 1e-3) / (real + found - common + 1e-3),
        SoftDice: lambda: (2 * common + 1e-6) / (real + found + 1e-6),
        TPR: lambda: share(tp, tp + fn, agree=fp == 0),
        TNR: lambda: share(tn, tn + fp, agree=fn == 0),
        Precision: lambda: share(tp, tp + fp, agree=fn == 0),
    }[metric]()


@st.composite
def masks(draw):
    shape = (draw(st.integers(1, 4)), *draw(st.sampled_from([(3,), (2, 3), (2, 3, 1), (2, 2, 3), (2, 2, 2, 1)])))
    random = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    true = random.random(shape) < draw(st.sampled_from([0.0, 0.2, 0.5, 1.0]))
    pred = random.random(shape) * draw(st.sampled_from([0.0, 0.6, 1.0]))
    return true.astype(draw(st.sampled_from(["bool", "uint8", "float32"]))), pred.astype("float32")


@pytest.mark.parametrize("metric", MASKS)
@settings(max_examples=40, deadline=None)
@given(pair=masks())
def test_masks_as_by_plain_loops(metric, pair):
    true, pred = pair
    found = values(metric(), true, pred)
    assert found.shape == (len(true),)
    np.testing.assert_allclose(found, [by_definition(metric, t, p) for t, p in zip(true, pred, strict=True)], atol=1e-6)
    assert ((found >= 0) & (found <= 1)).all()
    one = metric().get_func()
    assert [one(t, p) for t, p in zip(true, pred, strict=True)] == pytest.approx(found.tolist())


@settings(max_examples=60, deadline=None)
@given(n=st.integers(1, 5), count=st.integers(2, 6), k=st.integers(1, 7), seed=st.integers(0, 999), hot=st.booleans())
def test_classes_as_by_plain_loops(n, count, k, seed, hot):
    random = np.random.default_rng(seed)
    labels = random.integers(0, count, n)
    logits = random.integers(-3, 4, (n, count)).astype(np.float32)  # so that some are equal
    shares = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
    given_labels = np.eye(count)[labels] if hot else labels
    expected = [-math.log(shares[i, labels[i]]) for i in range(n)]
    np.testing.assert_allclose(values(CrossEntropy(), given_labels, shares), expected, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(
        values(CrossEntropy(from_logits=True), given_labels, logits), expected, rtol=1e-5, atol=1e-6
    )
    order = [sorted(range(count), key=lambda c: (-logits[i, c], c)) for i in range(n)]
    assert values(Accuracy(), given_labels, logits).tolist() == [order[i][0] == labels[i] for i in range(n)]
    assert values(TopK(k), given_labels, logits).tolist() == [labels[i] in order[i][:k] for i in range(n)]


@settings(max_examples=60, deadline=None)
@given(n=st.integers(1, 4), seed=st.integers(0, 999), shape=st.sampled_from([(), (1,), (3,), (2, 2, 1)]))
def test_regression_as_by_plain_loops(n, seed, shape):
    random = np.random.default_rng(seed)
    true, pred = random.normal(size=(n, *shape)), random.normal(size=(n, *shape)).astype(np.float32)
    gaps = [(np.ravel(p) - np.ravel(t)).tolist() for t, p in zip(true, pred, strict=True)]
    np.testing.assert_allclose(values(AbsoluteError(), true, pred), [np.mean([abs(g) for g in row]) for row in gaps])
    np.testing.assert_allclose(values(SquaredError(), true, pred), [np.mean([g * g for g in row]) for row in gaps])
    relative = [
        np.mean([abs(g / t) for g, t in zip(row, np.ravel(ts), strict=True)])
        for row, ts in zip(gaps, true, strict=True)
    ]
    np.testing.assert_allclose(values(RelativeError(), true, pred), relative)


@pytest.mark.backend
@pytest.mark.parametrize("from_logits", [False, True])
def test_cross_entropy_is_that_of_keras(from_logits):
    import keras

    random = np.random.default_rng(0)
    logits = random.normal(size=(6, 5)).astype(np.float32)
    pred = logits if from_logits else np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
    labels = random.integers(0, 5, 6)
    ours = values(CrossEntropy(from_logits), labels, pred)
    theirs = keras.ops.convert_to_numpy(
        keras.losses.sparse_categorical_crossentropy(labels, pred, from_logits=from_logits)
    )
    np.testing.assert_allclose(ours, theirs, rtol=1e-5)
    two = pred[:, :1]
    binary = keras.losses.binary_crossentropy(labels[:, None] % 2, two, from_logits=from_logits)
    np.testing.assert_allclose(
        values(CrossEntropy(from_logits), labels % 2, two), keras.ops.convert_to_numpy(binary), rtol=1e-5
    )


def test_a_certain_mistake_has_a_finite_cross_entropy():
    assert values(CrossEntropy(), [0], [[0.0, 1.0]])[0] == pytest.approx(-math.log(1e-7))
    assert values(CrossEntropy(from_logits=True), [0], [[-1000.0, 1000.0]])[0] == 2000
    assert values(CrossEntropy(), [1], [[0.0, 0.0]])[0] == pytest.approx(-math.log(1e-7))


# -- empty masks -----------------------------------------------------------------------------------------------------

NOTHING = np.zeros((1, 4, 4, 1))
FULL = np.ones((1, 4, 4, 1))
CORNER = np.pad(np.ones((1, 1, 1, 1)), [(0, 0), (0, 3), (0, 3), (0, 0)])


@pytest.mark.parametrize("metric", MASKS)
def test_two_empty_masks_agree(metric):
    assert values(metric(), NOTHING, NOTHING) == [1.0]
    assert values(metric(), FULL, FULL) == [1.0]


@pytest.mark.parametrize("metric", [IoUScore, DiceScore, SoftIoUScore, SoftDice])
def test_empty_masks_without_smoothing(metric):
    assert values(metric(epsilon=0), NOTHING, NOTHING) == [1.0]
    assert values(metric(epsilon=0), NOTHING, CORNER) == [0.0]


@pytest.mark.parametrize(
    ("metric", "true", "pred", "expected"),
    [
        (TPR, NOTHING, CORNER, 0.0),
        (TNR, NOTHING, CORNER, 15 / 16),
        (TNR, FULL, CORNER, 0.0),
        (Precision, NOTHING, CORNER, 0.0),
        (Precision, CORNER, NOTHING, 0.0),
        (TPR, CORNER, NOTHING, 0.0),
        (IoUScore, CORNER, NOTHING, pytest.approx(0.0, abs=1e-3)),
        (DiceScore, NOTHING, FULL, pytest.approx(0.0, abs=1e-6)),
    ],
)
def test_one_empty_mask(metric, true, pred, expected):
    assert values(metric(), true, pred)[0] == expected


@pytest.mark.parametrize(
    ("metric", "true", "pred"), [(TPR, NOTHING, CORNER), (TNR, FULL, FULL), (Precision, CORNER, NOTHING)]
)
def test_the_value_of_an_undefined_rate_can_be_set(metric, true, pred):
    assert math.isnan(values(metric(empty=math.nan), true, pred)[0])
    assert values(metric(empty=0.25), true, pred) == [0.25]


# -- shapes and values that do not fit -------------------------------------------------------------------------------


@pytest.mark.parametrize("metric", EVERY)
def test_shapes_that_do_not_fit_are_an_error_that_shows_them(metric):
    with raises_problem(key="y_true", reason=r"\(2, 5, 4\).*\(2, 4, 4\)"):
        values(metric(), np.zeros((2, 5, 4)), np.full((2, 4, 4), 0.25))


@pytest.mark.parametrize("metric", MASKS)
def test_a_last_axis_of_one_may_be_left_out(metric):
    true, pred = CORNER, np.full((1, 4, 4, 1), 0.7)
    assert values(metric(), true[..., 0], pred) == values(metric(), true, pred[..., 0]) == values(metric(), true, pred)


@pytest.mark.parametrize("metric", EVERY)
@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_a_prediction_that_is_not_finite_gives_nan(metric, bad):
    true = np.array([[1.0, 0.0], [0.0, 1.0]])
    pred = np.array([[0.5, 0.5], [0.5, bad]])
    if bad == np.inf and metric in (SoftIoUScore, SoftDice, CrossEntropy):
        metric = {CrossEntropy: lambda: CrossEntropy(from_logits=True)}.get(metric, IoUScore)
    found = values(metric(), true, pred)
    assert not math.isnan(found[0])
    assert math.isnan(found[1])


@pytest.mark.parametrize(
    ("metric", "true", "pred", "fields"),
    [
        (IoUScore(), [[255.0]], [[1.0]], {"key": "y_true", "received": 255.0, "remedy": "divide by 255"}),
        (TPR(), [[-1]], [[1.0]], {"key": "y_true", "received": -1}),
        (SoftDice(), [[1.0]], [[3.5]], {"key": "y_pred", "received": 3.5, "remedy": "sigmoid"}),
        (CrossEntropy(), [1], [[-2.0, 2.0]], {"key": "y_pred", "received": -2.0, "remedy": "from_logits=True"}),
        (CrossEntropy(), [0.0], [7.0], {"key": "y_pred", "received": 7.0, "remedy": "from_logits=True"}),
        (CrossEntropy(), [[1.0, 1.0]], [[0.5, 0.5]], {"key": "y_true", "reason": "sum to 1"}),
        (CrossEntropy(), [2], [[0.5, 0.5]], {"reason": "the first is 2 at index 0"}),
        (Accuracy(), [[2]], [[0.5, 0.5]], {"reason": "the first is 2"}),
        (TopK(2), [[0, 1]], [[0.5, 0.5, 0.0]], {"key": "y_true", "remedy": "class numbers of shape"}),
    ],
)
def test_invalid_values_are_an_error_that_shows_them(metric, true, pred, fields):
    with raises_problem(**fields):
        values(metric, true, pred)


def test_arguments_are_checked():
    for make, key, received in (
        (lambda: TopK(0), "k", 0),
        (lambda: IoUScore(epsilon=-1), "epsilon", -1),
        (lambda: RelativeError(epsilon=0), "epsilon", 0),
    ):
        with raises_problem(key=key, received=received):
            make()


def test_names_are_unique():
    metrics = [metric() for metric in [*EVERY, TopK]]
    assert len({m.name for m in metrics}) == len(metrics)
    assert TopK(3).name == "top_3"
    assert all(m.vectorized and m.description and m.better for m in metrics)
    assert IoUScore(0.3, name="iou at 0.3").name == "iou at 0.3"
