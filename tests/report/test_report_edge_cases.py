"""Unusual runs and data: the report is still complete and correct."""

import json
import warnings
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from everstep.evaluation import Accuracy, Evaluator, SampleBatch
from everstep.report import write
from everstep.report.card import write_card
from everstep.report.split_data import residuals, slices
from everstep.run.kept_work import goodput
from everstep.run.lock import RunLock
from everstep.run.record import Run, damage
from everstep.testing.problems import raises_problem

from .report_runs import classification_run, resumed_run
from .test_report_data import column, data_of, split_of


def test_a_metric_with_few_distinct_and_some_missing_values():
    nan, inf = float("nan"), float("inf")
    table = pa.table({"score": [0.0, 1.0, nan, 1.0, inf, None], "loss": [1.0, 2.0, 3.0, 4.0, 5.0, 6.0]})
    loss = table["loss"].to_numpy()
    found = {one["column"]: one["groups"] for one in slices(table, {"loss": loss}, 0)}
    assert found["score"] == [
        {"value": 0.0, "count": 1, "means": [1.0]},
        {"value": 1.0, "count": 2, "means": [3.0]},
        {"rest": True, "count": 3, "means": [14 / 3]},
    ]
    json.dumps(found, allow_nan=False)


def test_two_hundred_classes_without_names(tmp_path):
    labels = np.arange(400) % 200
    batch = SampleBatch(None, labels, np.eye(200)[(labels + (np.arange(400) < 50)) % 200])
    Evaluator([Accuracy()], kind="classification").run([batch], tmp_path / "reports", "test")
    found = {one["column"]: one["groups"] for one in split_of(write([tmp_path]))["slices"]}
    assert [group["value"] for group in found["label"]] == list(range(200))
    assert {group["count"] for group in found["label"]} == {2}


def test_ids_that_are_not_utf_8(tmp_path):
    names = [b"caf\xe9 %d.png".replace(b"%d", str(i).encode()).decode("utf-8", "surrogateescape") for i in range(20)]
    split = split_of(write([classification_run(tmp_path, rows=20, ids=names)]))
    assert column(split, "id")["values"][3] == r"caf\udce9 3.png"


def test_the_greys_of_classes_are_the_same_in_both_masks(tmp_path):
    """Labels are class numbers, predictions a share for each of four classes, of which only two occur."""
    labels = np.random.default_rng(0).integers(0, 2, (3, 8, 8))
    batch = SampleBatch(None, labels, np.eye(4, dtype=np.float32)[labels])
    Evaluator({"right": _share_right}, kind="segmentation").run([batch], tmp_path / "reports", "test")
    for sample in split_of(write([tmp_path]))["samples"]:
        assert sample["target"]["image"] == sample["output"]["image"]


def _share_right(y_true, y_pred):
    return float((np.asarray(y_true) == np.asarray(y_pred).argmax(-1)).mean())


def config_of(run: Path) -> str:
    return data_of(write([run]))["runs"][0]["config"]


def test_the_configuration_is_the_one_used_in_training(tmp_path):
    resumed_run(tmp_path, config="seed: 1\n")
    for number, begun in ((1, True), (2, True), (3, False)):
        folder = tmp_path / "submissions" / f"2030010{number}-000000-abcd"
        folder.mkdir(parents=True)
        (folder / "submission.json").write_text(json.dumps({"config": "my.yaml"}))
        (folder / "my.yaml").write_text(f"seed: submitted {number}\n")
        if begun:
            (folder / "started.json").write_text("{}")
    assert config_of(tmp_path) == "seed: submitted 2\n"  # the third waits
    (tmp_path / "submissions" / "20300102-000000-abcd" / "submission.json").write_text('{"config": null}')
    assert config_of(tmp_path) == "seed: 1\n"  # a command has no config file
    (tmp_path / "exported").mkdir()
    (tmp_path / "exported" / "config.yaml").write_text("seed: exported\n")
    assert config_of(tmp_path) == "seed: exported\n"


@pytest.mark.parametrize(
    ("second", "rows", "left_out"),
    [
        ("password: ***\nkeys: [***, b]\nseed: 2\n", [("seed", ["1", "2"])], []),
        ("password: '***'\nkeys: ['***', b]\nseed: 'a, ***'\n", [("seed", ["1", "a, ***"])], []),
        ("password: ***\nseed: [1\n", [], [1]),
        ("only a text\n", [], [1]),
    ],
)
def test_configurations_with_redacted_values_or_without_keys(tmp_path, second, rows, left_out):
    first = "password: ***\nkeys: [***, b]\nseed: 1\n"
    runs = [resumed_run(tmp_path / name, config=text) for name, text in (("a", first), ("b", second))]
    data = data_of(write(runs))
    assert [(row["key"], row["values"]) for row in data["configuration"]] == rows
    assert data["incomparable"] == left_out
    (tmp_path / "a" / "config.yaml").write_text(second)
    data = data_of(write(runs))
    assert (data["configuration"], data["incomparable"]) == ([], []), "equal texts have no differences"


def status_of(run: Path) -> str:
    return data_of(write([run]))["runs"][0]["status"]


def test_a_run_recorded_as_running_without_a_lock_was_killed(tmp_path):
    resumed_run(tmp_path)
    _edit(tmp_path, status="running")
    with RunLock(tmp_path):
        assert status_of(tmp_path) == "running"
    assert status_of(tmp_path) == "killed"


def _edit(run: Path, **values) -> dict:
    record = json.loads((run / "run.json").read_text()) | values
    (run / "run.json").write_text(json.dumps(record))
    return record


@pytest.mark.parametrize("time", ["yesterday", "", "2026-02-30T00:00:00"])
def test_times_that_cannot_be_read(tmp_path, time):
    resumed_run(tmp_path)
    attempts = _edit(tmp_path)["attempts"]
    record = _edit(tmp_path, attempts=[one | {"started": time, "ended": time} for one in attempts])
    facts = {fact["name"]: fact for fact in data_of(write([tmp_path]))["runs"][0]["facts"]}
    assert facts["goodput"]["value"] == "90.9%"
    assert "time" not in facts
    assert (goodput(record).seconds, goodput(record).down) == (0, 0)


def test_an_end_time_that_cannot_be_read_is_ignored(tmp_path):
    resumed_run(tmp_path)
    record = _edit(tmp_path)
    record["attempts"][0]["ended"] = "?"
    assert goodput(record).down == 0
    assert 0 < goodput(record).seconds < 1000


@pytest.mark.parametrize(
    ("values", "key"),
    [
        ({"attempts": "none"}, "attempts"),
        ({"attempts": [7]}, r"attempts\[0\]"),
        ({"attempts": [{"started": 5}]}, r"attempts\[0\].started"),
        ({"step": "many"}, "step"),
        ({"metrics": {"train": 0.5}}, "metrics.train"),
    ],
)
def test_a_damaged_record_is_refused(tmp_path, values, key):
    resumed_run(tmp_path)
    _edit(tmp_path, **values)
    path = str(tmp_path / "run.json")
    with raises_problem(key="run.json", received=path, reason=f"is damaged: {key} is missing, or has no usable value"):
        write([tmp_path])


def test_a_new_record_is_not_damaged():
    assert damage(Run.open("nowhere", "mnist/mlp", "jax").record) is None


@pytest.mark.parametrize(
    ("labels", "answers"), [([1.7e308, 1.0, 2.0], [-1.7e308, 1.5, 2.0]), ([1e200, 1.0], [-1e200, 1.0])]
)
def test_residuals_of_very_large_labels(labels, answers):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = residuals(pa.table({"label": labels, "prediction": answers}))
    json.dumps(found, allow_nan=False)
    assert found["count"] == sum(found["histogram"]["counts"]) == 2  # the distance of the first pair may be no number
    assert residuals(pa.table({"label": [1.7e308], "prediction": [-1.7e308]})) is None


def test_a_mapping_in_a_list_keeps_its_keys(tmp_path):
    run = classification_run(resumed_run(tmp_path / "run"), rows=20)
    owners = [{"team": "Bees"}, {"name": "Ada", "contact": None}, {"description": "nobody else"}, {"empty": ""}]
    write_card(run, {"model_details": {"owners": owners}})
    text = (run / "README.md").read_text("utf-8")
    assert "**Owners**\n\n- team: Bees\n- name: Ada\n- nobody else\n\n" in text


def test_a_metric_with_one_value(tmp_path):
    batch = SampleBatch(None, np.zeros(9, int), np.tile([0.9, 0.1], (9, 1)))
    Evaluator([Accuracy()], kind="classification").run([batch], tmp_path / "reports", "test")
    write_card(tmp_path, {})
    assert "![always 1](model-card" in (tmp_path / "README.md").read_text("utf-8")
