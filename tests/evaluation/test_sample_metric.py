"""The accepted forms of metrics, and the errors for others."""

import math

import numpy as np
import pytest

from everstep.errors import UsageError
from everstep.evaluation import Accuracy, CrossEntropy, SampleMetric, sample_metrics, vectorized
from everstep.evaluation.sample_metric import scores
from everstep.testing.problems import raises_problem

pytestmark = pytest.mark.slow

IDS = ["a", "b", "c"]
TRUE = np.array([1.0, 2.0, 3.0])
PRED = np.array([1.5, 2.0, 1.0])


def error(y_true, y_pred):
    return abs(y_true - y_pred)


class OlderMetric:
    """The form of a list entry: a name, a description, and a method that returns the function."""

    name = "older"
    description = "from a class"

    def get_func(self):
        return error


def measured(metric):
    return scores(metric, IDS, TRUE, PRED).tolist()


def test_a_dict_from_name_to_function():
    (metric,) = sample_metrics({"sparse categorical ce": error})
    assert (metric.name, metric.vectorized, metric.better) == ("sparse categorical ce", False, None)
    assert measured(metric) == [0.5, 0.0, 2.0]


def test_a_list_of_objects_with_get_func():
    older, ours = sample_metrics([OlderMetric(), SampleMetric("ours", error, better="lower")])
    assert (older.name, older.description, ours.better) == ("older", "from a class", "lower")
    assert measured(older) == measured(ours)


def test_a_dict_renames_metrics():
    metrics = sample_metrics({"first": Accuracy(), "second": OlderMetric()})
    assert [(m.name, m.vectorized, m.better) for m in metrics] == [
        ("first", True, "higher"),
        ("second", False, None),
    ]


def test_declared_functions_get_a_batch():
    @vectorized
    def over_a_batch(y_true, y_pred):
        assert y_true.shape == (3,)
        return np.abs(y_true - y_pred)

    (metric,) = sample_metrics({"error": over_a_batch})
    assert metric.vectorized
    assert measured(metric) == measured(SampleMetric("e", over_a_batch.__wrapped__, vectorized=True)) == [0.5, 0.0, 2.0]


def test_a_builtin_can_be_declared():
    assert measured(SampleMetric("largest", vectorized(np.maximum))) == [1.5, 2.0, 3.0]


def test_a_vectorised_metric_can_be_called_for_one_sample():
    one = CrossEntropy().get_func()(2, np.array([0.1, 0.2, 0.7]))
    assert one == pytest.approx(-math.log(0.7))


@pytest.mark.parametrize(
    ("metrics", "key", "received"),
    [
        ({"": error}, "name", ""),
        ({"  ": error}, "name", "  "),
        ({3: error}, "name", 3),
        ({"loss": None}, "metrics.loss", None),
        ({"id": error}, "name", "id"),
        ([Accuracy(), Accuracy()], "metrics", "accuracy"),
        ([OlderMetric(), SampleMetric("older", error)], "metrics", "older"),
        ([error], "metrics", error),
        (error, "metrics", error),
        ("accuracy", "metrics", "accuracy"),
    ],
)
def test_other_objects_are_refused(metrics, key, received):
    with pytest.raises(UsageError) as refused:
        sample_metrics(metrics)
    assert (refused.value.key, refused.value.received) == (key, received)


def test_better_must_be_higher_or_lower():
    with pytest.raises(UsageError) as refused:
        SampleMetric("score", error, better="max")
    assert (refused.value.key, refused.value.received) == ("metrics.score.better", "max")


@pytest.mark.parametrize(
    ("returned", "message"),
    [
        (None, r"returned None \(NoneType\) for sample 'a'"),
        ("0.5", "returned '0.5'"),
        (1j, "complex"),
        (math.inf, "returned inf"),
        (np.float32(-np.inf), "inf"),
        (np.zeros(2), r"ndarray of shape \(2,\)"),
        ([[1], [1, 2]], "list"),
        (np.array(None), "ndarray"),
    ],
)
def test_the_error_for_a_result_that_is_not_a_number_names_metric_and_sample(returned, message):
    with raises_problem(key="metrics.mine", reason=message) as refused:
        measured(SampleMetric("mine", lambda y_true, y_pred: returned))
    assert "sample 'a'" in str(refused.value)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    "returned", [0.5, 1, True, np.float16(0.5), np.int8(1), np.array([0.5]), np.array([[0.5]]), math.nan]
)
def test_one_number_of_any_type_is_accepted(returned):
    found = scores(SampleMetric("mine", lambda y_true, y_pred: returned), IDS, TRUE, PRED)
    np.testing.assert_array_equal(found, np.full(3, np.asarray(returned, np.float64).item()))


@pytest.mark.parametrize(
    ("returned", "fields"),
    [
        (0.5, {"reason": r"returned 0.5 \(float\) for the 3 samples from 'a' to 'c'"}),
        (np.zeros(2), {"reason": r"shape \(2,\)"}),
        (np.zeros((3, 2)), {"reason": r"shape \(3, 2\)"}),
        (np.zeros((1, 3)), {"reason": r"shape \(1, 3\)"}),
        (["x", "y", "z"], {"remedy": "one number per sample"}),
        (np.array([0.0, np.inf, 1.0]), {"reason": "returned inf .* for sample 'b'"}),
    ],
)
def test_a_vectorised_result_of_another_shape_is_refused(returned, fields):
    with raises_problem(key="metrics.mine", **fields):
        measured(SampleMetric("mine", lambda y_true, y_pred: returned, vectorized=True))


def test_an_error_in_a_function_names_the_sample_and_the_line():
    def fails(y_true, y_pred):
        return 1 / 0 if y_true == 2 else 0.0

    with raises_problem(
        key="metrics.mine", reason=r"failed on sample 'b': ZeroDivisionError.*test_sample_metric.py:\d+"
    ):
        measured(SampleMetric("mine", fails))
    with raises_problem(key="metrics.mine", reason="failed on the batch from sample 'a' to 'c': ValueError"):
        measured(SampleMetric("mine", fails, vectorized=True))


def test_a_metric_cannot_change_its_arguments():
    def writes(y_true, y_pred):
        y_pred[y_pred > 1] = 0
        return 0.0

    image = np.full((1, 2, 2), 2.0)
    from everstep.evaluation.arrays import host

    with raises_problem(
        key="metrics.mine", reason="failed on sample 'a': ValueError: assignment destination is read-only"
    ):
        scores(SampleMetric("mine", writes), ["a"], host(image), host(image))


@pytest.mark.backend
def test_tensors_of_the_backend_are_converted():
    import keras

    def loss(y_true, y_pred):
        return keras.losses.SparseCategoricalCrossentropy()(y_true, y_pred)

    shares = np.float32([[0.2, 0.8], [0.5, 0.5], [1.0, 0.0]])
    found = scores(SampleMetric("ce", loss), IDS, np.array([1, 0, 0]), shares)
    np.testing.assert_allclose(found, [-math.log(0.8), -math.log(0.5), 0], atol=1e-6)
    tensors = vectorized(lambda y_true, y_pred: keras.ops.abs(keras.ops.subtract(y_true, y_pred)))
    np.testing.assert_allclose(scores(SampleMetric("error", tensors), IDS, TRUE, PRED), [0.5, 0, 2])


@pytest.mark.backend
def test_calling_numpy_on_a_jax_array_has_a_remedy():
    import keras

    def loss(y_true, y_pred):
        return keras.ops.abs(keras.ops.convert_to_tensor(y_true) - y_pred).numpy()

    metric = SampleMetric("scce", loss)
    if keras.backend.backend() != "jax":
        assert measured(metric) == [0.5, 0.0, 2.0]
        return
    reason = r"calls \.numpy\(\) on \w+.*sample 'a'"
    with raises_problem(key="metrics.scce", reason=reason, remedy="return the value itself"):
        measured(metric)
