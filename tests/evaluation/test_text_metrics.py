"""Texts that a model wrote, measured and shown sample by sample."""

import json

import numpy as np
import pyarrow.parquet as pq
import pytest

from everstep.errors import UsageError
from everstep.evaluation import Evaluator, ExactMatch, Rouge, SampleBatch, SampleLoss, TokenF1
from everstep.evaluation.outcome import kind_of
from everstep.evaluation.sample_metric import scores

EXPECTED = np.array(["The cat sat.", "four", "blue sky", ""])
WRITTEN = np.array(["the  cat sat", "five", "a blue blue sea", ""])
IDS = ["a", "b", "c", "d"]


@pytest.mark.parametrize(
    ("metric", "values"),
    [
        (ExactMatch(), [1, 0, 0, 1]),
        (ExactMatch(normalize=False), [0, 0, 0, 1]),
        (TokenF1(), [1, 0, 1 / 3, 1]),
        (Rouge("rouge1"), [1, 0, 1 / 3, 0]),
        (Rouge("rouge2"), [1, 0, 0, 0]),
    ],
)
def test_values(metric, values):
    assert scores(metric, IDS, EXPECTED, WRITTEN).tolist() == pytest.approx(values)


def test_texts_may_stand_beside_other_values():
    predictions = {"text": WRITTEN, "loss": np.array([0.1, 2.0, 1.0, 0.0])}
    assert scores(ExactMatch(), IDS, EXPECTED, predictions).tolist() == [1, 0, 0, 1]
    assert scores(SampleLoss(), IDS, EXPECTED, predictions).tolist() == [0.1, 2.0, 1.0, 0.0]
    assert kind_of(EXPECTED, predictions) == "text"


def test_an_unknown_kind_of_rouge_names_the_nearest():
    with pytest.raises(UsageError) as caught:
        Rouge("rouge-l")
    assert caught.value.key == "kind"
    assert "rougeL" in caught.value.remedy


def test_the_report_has_prompt_expected_text_and_text_worst_first(tmp_path):
    predictions = {"text": WRITTEN, "loss": np.array([0.1, 2.0, 1.0, 0.0])}
    prompts = ["What sat?", "2 + 2 =", "It is", ""]
    evaluation = Evaluator([SampleLoss(), TokenF1()]).run(
        [SampleBatch(IDS, EXPECTED, predictions, prompts)], tmp_path, "validation"
    )
    assert evaluation.kind == "text"
    page = json.loads((tmp_path / "validation.json").read_text())
    worst = min(page["samples"], key=lambda sample: next(r["rank"] for r in sample["reasons"] if r["metric"] == "loss"))
    assert worst["id"] == "b"
    assert (worst["input"], worst["target"], worst["output"]) == (
        {"text": "2 + 2 ="},
        {"text": "four"},
        {"text": "five"},
    )
    rows = pq.read_table(tmp_path / "validation.parquet").to_pylist()
    assert [row["label"] for row in rows] == EXPECTED.tolist()
    assert [row["prediction"] for row in rows] == WRITTEN.tolist()
    assert "label" not in (tmp_path / "validation.csv").read_text().splitlines()[0]


def test_text_is_refused_where_predictions_are_numbers(tmp_path):
    with pytest.raises(UsageError) as caught:
        Evaluator([ExactMatch()], kind="text").run([(IDS, EXPECTED, np.zeros((4, 3)))], tmp_path, "test")
    assert caught.value.key == "y_pred"


def test_texts_that_are_bytes_are_decoded(tmp_path):
    batch = (["a"], np.array([b"caf\xc3\xa9"], object), np.array([b"caf\xe9"], object))
    Evaluator([ExactMatch()]).run([batch], tmp_path, "test")
    row = pq.read_table(tmp_path / "test.parquet").to_pylist()[0]
    assert (row["label"], row["prediction"], row["exact_match"]) == ("café", "caf\\xe9", 0.0)
