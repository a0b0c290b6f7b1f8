"""Label, prediction and confidence, and the samples that a report shows."""

import base64
import io
import json

import numpy as np
import pandas as pd
import pytest
from PIL import Image

from everstep.evaluation import Accuracy, CrossEntropy, Evaluator, IoUScore, SampleMetric, gallery
from everstep.evaluation.outcome import kind_of
from everstep.testing.problems import raises_problem

pytestmark = pytest.mark.slow

GIVEN = {"value": lambda y_true, y_pred: float(np.ravel(y_true)[0])}


def evaluated(directory, batches, metrics=GIVEN, **arguments):
    Evaluator(metrics, **arguments).run(batches, directory, "test")
    return json.loads((directory / "test.json").read_text()), pd.read_parquet(directory / "test.parquet")


def image(shown):
    kind, _, data = shown["image"].partition(",")
    assert kind == "data:image/png;base64"
    return np.asarray(Image.open(io.BytesIO(base64.b64decode(data))))


@pytest.mark.parametrize(
    ("true", "pred", "kind"),
    [
        ([0, 2], np.ones((2, 3)) / 3, "classification"),
        ([[0], [2]], np.ones((2, 3)), "classification"),
        ([[1, 0], [0, 1]], np.ones((2, 2)), "classification"),
        ([0, 1], [0.2, 0.9], "classification"),
        ([0.0, 1.0], [[0.2], [0.9]], "classification"),
        ([0, 1], [-3.0, 2.0], "regression"),
        ([0.5, 1.0], [0.2, 0.9], "regression"),
        ([[0.5, 1.0]], [[0.2, 0.9]], "regression"),
        ([[1, 1], [0, 1]], np.ones((2, 2)), "values"),
        ([5, 1], np.ones((2, 3)), "values"),
        (np.zeros((2, 4, 4)), np.zeros((2, 4, 4, 1)), "segmentation"),
        (np.zeros((2, 4, 4, 4, 1)), np.zeros((2, 4, 4, 4, 1)), "segmentation"),
        (["a"], ["b"], "text"),
    ],
)
def test_the_kind_is_inferred(true, pred, kind):
    assert kind_of(np.asarray(true), np.asarray(pred)) == kind


def test_classification(tmp_path):
    pred = np.array([[0.7, 0.2, 0.1], [0.1, 0.6, 0.3], [0.2, 0.5, 0.3]])
    page, frame = evaluated(
        tmp_path, [(["a", "b", "c"], [0, 1, 2], pred)], [CrossEntropy(), Accuracy()], classes=["x", "y", "z"]
    )
    assert frame["label"].tolist() == [0, 1, 2]
    assert frame["prediction"].tolist() == [0, 1, 1]
    assert frame["confidence"].tolist() == [0.7, 0.6, 0.5]
    assert (frame.dtypes["label"], frame.dtypes["prediction"]) == ("int64", "int64")
    assert page["confusion"] == [[1, 0, 0], [0, 1, 0], [0, 1, 0]]
    assert (page["kind"], page["classes"]) == ("classification", ["x", "y", "z"])
    (sample,) = [s for s in page["samples"] if s["id"] == "c"]
    assert (sample["row"], sample["label"], sample["prediction"], sample["confidence"]) == (2, 2, 1, 0.5)
    assert sample["values"] == {"cross_entropy": pytest.approx(-np.log(0.3)), "accuracy": 0.0}
    assert sample["reasons"] == [{"metric": "cross_entropy", "rank": 1}, {"metric": "accuracy", "rank": 1}]


@pytest.mark.parametrize(
    ("pred", "confidence"), [([[0.0, 2.0]], 1 / (1 + np.exp(-2.0))), ([[3.0]], 1 / (1 + np.exp(-3.0)))]
)
def test_logits_give_a_probability(tmp_path, pred, confidence):
    _, frame = evaluated(tmp_path, [(None, [1], np.array(pred))], kind="classification")
    assert frame["prediction"].tolist() == [1]
    assert frame["confidence"][0] == pytest.approx(confidence)


def test_one_number_of_two_classes(tmp_path):
    page, frame = evaluated(tmp_path, [(None, np.array([0, 1, 1]), np.array([0.25, 0.75, 0.25]))])
    assert frame["prediction"].tolist() == [0, 1, 0]
    assert frame["confidence"].tolist() == [0.75, 0.75, 0.75]
    assert page["confusion"] == [[1, 0], [1, 1]]


def test_an_output_that_is_not_finite_has_no_prediction(tmp_path):
    pred = np.array([[0.5, 0.5], [np.nan, 0.5]])
    page, frame = evaluated(tmp_path, [(None, [1, 1], pred)], [Accuracy()], kind="classification")
    assert frame["prediction"].isna().tolist() == [False, True]
    assert page["confusion"] == [[0, 0], [1, 0]]
    assert page["metrics"][0]["count"] == 1


def test_data_that_does_not_fit_the_kind_is_refused(tmp_path):
    two = np.array([[0.5, 0.5]])
    kind = {"kind": "classification"}
    for arguments, batches, fields in [
        ({"kind": "clasification"}, [(None, [1], two)], {"key": "kind", "received": "clasification"}),
        ({"classes": ["x"]}, [(None, [1], two)], {"key": "classes", "reason": "1 names, .* for 2 classes"}),
        (kind, [(None, [1], np.zeros((1, 2, 2)))], {"key": "y_pred", "received": (1, 2, 2), "reason": "shape"}),
        (kind, [(None, [5], two)], {"reason": "the first is 5"}),
        (kind, [(None, np.array([[1, 0, 0]]), two)], {"key": "y_true", "reason": "nor one-hot"}),
        ({}, [(None, [1], two), (None, [1], two * 9)], {"key": "y_pred", "remedy": "from_logits=True"}),
    ]:
        with raises_problem(**fields):
            Evaluator(GIVEN, **arguments).run(batches, tmp_path, "test")


def test_too_many_classes_for_a_confusion_matrix(tmp_path):
    pred = np.zeros((2, 1001), np.float32)
    page, frame = evaluated(tmp_path, [(None, [7, 1000], pred)])
    assert page["confusion"] is None
    assert frame["label"].tolist() == [7, 1000]


@pytest.mark.parametrize(
    ("better", "expected"), [("lower", range(99, 75, -1)), ("higher", range(24)), (None, range(99, 75, -1))]
)
def test_the_worst_by_each_metric(tmp_path, better, expected):
    values = np.arange(100.0)
    metric = SampleMetric("value", lambda y_true, y_pred: np.nan if y_true == 99.5 else y_true, better=better)
    batches = [(None, part, part) for part in np.split(np.append(values, 99.5), [1, 10, 50])]
    page, _ = evaluated(tmp_path, batches, [metric], kind="values")
    ranked = sorted(page["samples"], key=lambda s: s["reasons"][0]["rank"])
    assert [s["row"] for s in ranked] == list(expected)
    assert [s["row"] for s in page["samples"]] == sorted(expected)


@pytest.mark.parametrize("size", [1, 7, 200])
def test_of_equally_bad_samples_the_first_are_shown(tmp_path, size):
    values = np.tile([0.0, 1.0], 100)  # the odd rows are worse
    page, _ = evaluated(
        tmp_path, [(None, part, part) for part in np.split(values, range(size, 200, size))], kind="values"
    )
    assert [s["row"] for s in page["samples"]] == list(range(1, 49, 2))
    assert [s["reasons"][0]["rank"] for s in page["samples"]] == list(range(1, 25))


def test_confusions_have_samples_up_to_a_total_limit(tmp_path):
    labels = np.tile(np.repeat(np.arange(20), 20), 6)
    pred = np.eye(20)[np.tile(np.arange(20), 120)]
    batches = [(None, labels[i : i + 64], pred[i : i + 64]) for i in range(0, 2400, 64)]
    page, _ = evaluated(tmp_path, batches, [Accuracy()])
    assert len(page["samples"]) == gallery.IN_ALL
    cells = {(s["label"], s["prediction"]) for s in page["samples"] if not s["reasons"]}
    assert len(cells) == gallery.IN_ALL - 24  # the first of as many cells as there is room for
    few, _ = evaluated(tmp_path, [(None, labels[:9] % 2, pred[:9, :2] + [0.1, 0])] * 5, [Accuracy()])
    assert len(few["samples"]) == 24


def test_many_metrics_share_the_limit(tmp_path):
    metrics = {f"m{i}": (lambda y_true, y_pred, i=i: float((y_true * (i + 7)) % 101)) for i in range(60)}
    page, _ = evaluated(tmp_path, [(None, np.arange(1000.0), np.zeros(1000))], metrics, kind="values")
    assert 0 < len(page["samples"]) <= gallery.IN_ALL
    assert {r["rank"] for s in page["samples"] for r in s["reasons"]} == {1, 2, 3, 4, 5}


@pytest.mark.parametrize(
    ("inputs", "size"),
    [
        (np.zeros((1, 28, 28), np.uint8), (28, 28)),
        (np.zeros((1, 28, 28, 1)), (28, 28)),
        (np.zeros((1, 300, 600, 3), np.float32), (64, 128, 3)),
        (np.zeros((1, 16, 8, 5, 1)), (16, 8)),
        ({"image": np.zeros((1, 9, 9, 4)), "more": np.zeros((1, 2))}, (9, 9, 4)),
    ],
)
def test_pictures_are_small(tmp_path, inputs, size):
    page, _ = evaluated(tmp_path, [(None, np.zeros(1), np.zeros(1), inputs)])
    assert image(page["samples"][0]["input"]).shape == size


def test_pictures_keep_their_brightness(tmp_path):
    ramp = np.linspace(0, 1, 64).reshape(1, 8, 8)
    shown = []
    for inputs in (ramp, np.uint8(ramp * 255 + 0.5), ramp * 255, ramp * 4 - 2):
        page, _ = evaluated(tmp_path, [(None, np.zeros(1), np.zeros(1), inputs)])
        shown.append(image(page["samples"][0]["input"]).astype(int))
    for picture in shown:
        assert np.abs(picture - shown[1]).max() <= 1


@pytest.mark.parametrize(
    ("inputs", "expected"),
    [
        (np.array([[1.5, np.nan]]), {"values": [1.5, None]}),
        (np.array([b"so it goes"]), {"text": "so it goes"}),
        (["so it goes"], {"text": "so it goes"}),
        (np.array([["so", "it"]]), {"text": "so it"}),
        (np.arange(1000)[None], {"values": [float(v) for v in range(256)]}),
    ],
)
def test_texts_and_numbers(tmp_path, inputs, expected):
    page, _ = evaluated(tmp_path, [(None, np.zeros(1), np.zeros(1), inputs)])
    assert page["samples"][0]["input"] == expected


def test_show_converts_the_input(tmp_path):
    flat = np.zeros((1, 784))
    page, _ = evaluated(tmp_path, [(None, np.zeros(1), np.zeros(1), flat)], show=lambda x: x.reshape(28, 28))
    assert image(page["samples"][0]["input"]).shape == (28, 28)
    with raises_problem(key="show", reason="failed on sample '0': ValueError"):
        evaluated(tmp_path, [(None, np.zeros(1), np.zeros(1), flat)], show=lambda x: x.reshape(5, 5))


def test_segmentation_shows_target_and_output(tmp_path):
    true = np.zeros((1, 16, 16, 1))
    true[0, :8] = 1
    page, frame = evaluated(tmp_path, [(None, true, true * 0.5, true)], [IoUScore(threshold=0.4)])
    assert (page["kind"], list(frame)) == ("segmentation", ["id", "iou"])
    flat, _ = evaluated(tmp_path, [(None, true.reshape(1, -1), true.reshape(1, -1))], [IoUScore()], kind="segmentation")
    assert len(flat["samples"][0]["target"]["values"]) == 256
    (sample,) = page["samples"]
    assert (sample["label"], sample["prediction"], sample["confidence"]) == (None, None, None)
    assert image(sample["target"])[0, 0] == 255
    assert image(sample["output"])[0, 0] == 128
    classes = np.eye(3)[np.arange(81).reshape(1, 9, 9) // 27]
    page, _ = evaluated(tmp_path, [(None, classes.argmax(-1), classes)], {"one": lambda y_true, y_pred: 1.0})
    assert np.unique(image(page["samples"][0]["output"])).tolist() == [0, 128, 255]
    assert np.unique(image(page["samples"][0]["target"])).tolist() == [0, 128, 255]


@pytest.mark.backend
def test_inputs_may_be_tensors_of_the_backend(tmp_path):
    import keras

    inputs = keras.ops.zeros((2, 28, 28, 1))
    page, _ = evaluated(tmp_path, [(None, np.zeros(2), np.zeros(2), inputs)])
    assert image(page["samples"][1]["input"]).shape == (28, 28)
