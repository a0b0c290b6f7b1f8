"""The page's data: tables, slices, classes and comparisons, checked against pandas."""

import hashlib
import json
import re
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from everstep.report import split_data, write
from everstep.report.run_data import code_name
from everstep.report.sample_comparison import join
from everstep.report.split_data import choose
from everstep.testing.problems import raises_problem

from .report_runs import HOSTILE, classification_run, exported_run, regression_run, resumed_run, segmentation_run


def data_of(path: Path) -> dict:
    text = re.search(r'id="data">(.*?)</script>', path.read_text("utf-8"), re.DOTALL)[1]
    return json.loads(text, parse_constant=lambda name: pytest.fail(f"{name} is no JSON"))


def split_of(path: Path, run: int = 0) -> dict:
    return data_of(path)["runs"][run]["splits"][0]


def column(split: dict, name: str) -> dict:
    return next(column for column in split["table"]["columns"] if column["name"] == name)


@pytest.fixture
def classes(tmp_path):
    return classification_run(resumed_run(tmp_path / "run"))


def test_the_table_has_all_rows_in_order(classes):
    split = split_of(write([classes]))
    frame = pd.read_parquet(classes / "reports" / "test.parquet")
    names = [column["name"] for column in split["table"]["columns"]]
    assert names == ["id", "label", "prediction", "confidence", "cross_entropy", "accuracy", "camera", "brightness"]
    assert [c["type"] for c in split["table"]["columns"]] == [
        "text",
        "class",
        "class",
        *["number"] * 3,
        "text",
        "number",
    ]
    for name in names:
        assert column(split, name)["values"] == frame[name].tolist()
    assert split["table"] == split["table"] | {"total": 200, "rows": None}


def test_precision_recall_and_confusion_of_classes(classes):
    split = split_of(write([classes]))
    frame = pd.read_parquet(classes / "reports" / "test.parquet")
    for row in split["by_class"]:
        own, said = frame.label == row["class"], frame.prediction == row["class"]
        assert row["support"] == own.sum()
        assert row["precision"] == pytest.approx((own & said).sum() / said.sum())
        assert row["recall"] == pytest.approx((own & said).sum() / own.sum())
        assert row["f1"] == pytest.approx(2 / (1 / row["precision"] + 1 / row["recall"]))
        assert row["means"] == pytest.approx(frame[own][["cross_entropy", "accuracy"]].mean().tolist())
    matrix = pd.crosstab(frame.label, frame.prediction)
    assert {(label, predicted): times for label, predicted, times in split["confusion"]["cells"]} == {
        (label, predicted): matrix.loc[label, predicted] for label in range(3) for predicted in range(3)
    }


def test_slices_contain_every_row_once(classes):
    split = split_of(write([classes]))
    frame = pd.read_parquet(classes / "reports" / "test.parquet")
    found = {one["column"]: one["groups"] for one in split["slices"]}
    assert list(found)[:3] == ["camera", "brightness", "label"]
    for name, groups in found.items():
        for group in groups:
            mine = frame[name] == group["value"] if "value" in group else frame[name] >= group["low"]
            if "low" in group:
                mine &= frame[name] <= group["high"] if group.get("last") else frame[name] < group["high"]
            assert group["count"] == mine.sum() > 0
            assert group["means"] == pytest.approx(frame[mine][["cross_entropy", "accuracy"]].mean().tolist())
        assert sum(group["count"] for group in groups) == 200
    assert [group["value"] for group in found["label"]] == [0, 1, 2]
    assert len(found["brightness"]) == 10


def test_missing_and_rare_values_form_one_group(tmp_path):
    words = [None if row % 5 == 0 else f"word {row % 60}" for row in range(200)]
    flags = [row % 2 == 0 for row in range(200)]
    split = split_of(
        write(
            [
                classification_run(
                    tmp_path, columns={"word": words, "flag": flags, "name": [f"n{i}" for i in range(200)]}
                )
            ]
        )
    )
    found = {one["column"]: one["groups"] for one in split["slices"]}
    assert "name" not in found  # one group per row says nothing
    assert {group["value"]: group["count"] for group in found["flag"]} == {"true": 100, "false": 100}
    assert len(found["word"]) == 41
    assert found["word"][-1]["rest"] is True
    assert sum(group["count"] for group in found["word"]) == 200


def test_a_long_table_is_cut_to_the_worst_and_evenly_chosen_rows(tmp_path, monkeypatch):
    monkeypatch.setattr(split_data, "MOST_ROWS", 100)
    monkeypatch.setattr(split_data, "WORST_ROWS", 20)
    split = split_of(write([classification_run(tmp_path, rows=1000)]))
    kept = split["table"]["rows"]
    assert len(kept) == len(set(kept)) == 100 == len(column(split, "id")["values"])
    assert kept == sorted(kept)
    assert split["table"]["total"] == 1000
    frame = pd.read_parquet(tmp_path / "reports" / "test.parquet")
    assert set(frame.cross_entropy.nlargest(10).index) <= set(kept)
    assert {sample["row"] for sample in split["samples"]} <= set(kept)
    assert sum(group["count"] for group in split["slices"][0]["groups"]) == 1000  # slices are over all of them


def test_a_metric_without_values_chooses_no_rows():
    page = {"metrics": [{"name": "m", "better": None}], "samples": []}
    chosen = choose(50_000, page, {"m": np.full(50_000, np.nan)})
    assert len(chosen) == 20_000
    assert np.diff(chosen).max() <= 3


def test_regression_has_residuals(tmp_path):
    split = split_of(write([regression_run(tmp_path)]))
    frame = pd.read_parquet(tmp_path / "reports" / "test.parquet")
    distances = (frame.prediction - frame.label).dropna()
    found = split["residuals"]
    assert found["count"] == 149 == sum(found["histogram"]["counts"])
    assert found["bias"] == pytest.approx(distances.mean())
    assert found["rmse"] == pytest.approx(np.sqrt((distances**2).mean()))
    assert found["r2"] == pytest.approx(
        1 - (distances**2).sum() / ((frame.label.drop(7) - frame.label.drop(7).mean()) ** 2).sum()
    )
    assert column(split, "prediction")["values"][7] is None  # NaN
    assert split["by_class"] == []


def test_segmentation_has_three_pictures_per_sample(tmp_path):
    split = split_of(write([segmentation_run(tmp_path)]))
    assert all({"input", "target", "output"} <= sample.keys() for sample in split["samples"])
    assert (split["confusion"], split["by_class"], split["residuals"]) == (None, [], None)


def test_facts_and_figures(classes):
    run = data_of(write([classes]))["runs"][0]
    facts = {fact["name"]: fact["value"] for fact in run["facts"]}
    assert facts["status"] == "finished"
    assert facts["attempts"] == "2"
    assert facts["goodput"] == "90.9%"  # 40 steps kept of 44
    assert facts["backend"] == "jax"
    assert facts["parameters"] == "1.32 M"
    assert run["marks"] == [{"step": 16, "text": "attempt 2, after: killed"}]
    assert [(figure["name"], figure["split"]) for figure in run["headline"]] == [
        ("loss", "test"), ("cross_entropy", "test"), ("accuracy", "test")
    ]  # fmt: skip
    assert [figure["better"] for figure in run["headline"]] == ["lower", "lower", "higher"]


def test_a_folder_without_python_files_names_no_code():
    assert code_name({"commit": None, "sources": "5" * 64}) == "sources 555555555555"
    assert code_name({"commit": None, "sources": hashlib.sha256(b"").hexdigest()}) == ""


def test_the_exported_epoch_is_in_the_header_and_on_the_curves(tmp_path):
    folder = exported_run(classification_run(tmp_path / "run", split="validation"))
    classification_run(folder, split="test")
    (folder / "reports" / "metrics.json").write_text(json.dumps({"notes": ["val_loss is another one"]}))
    run = data_of(write([folder]))["runs"][0]
    assert {fact["name"]: fact["value"] for fact in run["origin"]} == {
        "date": "2026-05-01",
        "code": "sources 555555555555",
        "exported": "epoch 3, chosen by the lowest val_loss: 0.5",
    }
    assert run["exported"]["step"] == 15
    assert run["steps_per_epoch"] == 5
    assert run["notes"] == ["val_loss is another one"]
    assert [(figure["name"], figure["split"]) for figure in run["headline"]] == [
        (name, split) for name in ("loss", "cross_entropy", "accuracy") for split in ("test", "validation")
    ]
    export = json.loads((folder / "exported" / "export.json").read_text())
    (folder / "exported" / "export.json").write_text(json.dumps({**export, "metric": "val_accuracy", "mode": "max"}))
    assert data_of(write([folder]))["runs"][0]["headline"][0]["name"] == "accuracy"


def test_a_run_that_logs_between_epochs_has_no_epoch_axis(classes):
    run = data_of(write([classes]))["runs"][0]
    assert run["steps_per_epoch"] is None
    assert run["exported"] is None


def test_without_evaluations_the_last_logs_are_the_headline(tmp_path):
    run = data_of(write([resumed_run(tmp_path)]))["runs"][0]
    assert run["splits"] == []
    assert [(f["name"], f["split"]) for f in run["headline"][:2]] == [
        ("validation_loss", "validation"),
        ("accuracy", "validation"),
    ]


def test_two_runs_are_joined_by_id(tmp_path):
    names = [f"image_{row}.png" for row in range(200)]
    first = classification_run(tmp_path / "first", ids=[*names[:190], *["twice"] * 10])
    second = classification_run(tmp_path / "second", seed=5, sharp=3.0, ids=names)
    data = data_of(write([first, second]))
    (found,) = data["comparisons"]
    before, after = (pd.read_parquet(run / "reports" / "test.parquet").set_index("id") for run in (first, second))
    both = before.drop("twice").add_suffix("_before").join(after)
    assert (found["joined"], found["only_before"], found["only_after"], found["repeated"]) == (190, 10, 10, 1)
    change = both.cross_entropy - both.cross_entropy_before
    entropy = found["metrics"][0]
    assert entropy["counts"] == {"improved": (change < 0).sum(), "worsened": (change > 0).sum()}
    assert entropy["after"] == pytest.approx(both.cross_entropy.mean())
    assert [item["id"] for item in entropy["worsened"]] == change[change > 0].nlargest(60).index.tolist()
    assert [item["id"] for item in entropy["improved"]] == change[change < 0].nsmallest(60).index.tolist()
    right, was = both.label == both.prediction, both.label_before == both.prediction_before
    assert (found["corrected"], found["broken"]) == ((right & ~was).sum(), (~right & was).sum())
    values = column(data["runs"][1]["splits"][0], "change of accuracy")["values"]
    assert values[:190] == (both.accuracy - both.accuracy_before).tolist()
    assert values[190:] == [None] * 10


def test_ids_that_repeat_are_not_joined():
    before, after, repeated = join(["a", "b", "b", "c"], ["c", "a", "x", "b"])
    assert (before.tolist(), after.tolist(), repeated) == ([3, 0], [0, 1], 1)
    assert join([], [])[2] == 0


def test_configurations_are_compared_key_by_key(tmp_path):
    first = resumed_run(tmp_path / "first", config="trainer: {seed: 1, steps: 5}\nname: same\n")
    second = resumed_run(tmp_path / "second", config="trainer: {seed: 2, steps: 5}\nname: same\nnew: [1]\n")
    assert data_of(write([first, second]))["configuration"] == [
        {"key": "trainer.seed", "values": ["1", "2"]},
        {"key": "new", "values": [None, "[1]"]},
    ]


def test_secrets_of_a_configuration_are_hidden(tmp_path):
    resumed_run(tmp_path, config="tracking:\n  password: hunter2hunter2\n")
    assert "hunter2hunter2" not in write([tmp_path]).read_text("utf-8")


def test_hostile_text_cannot_leave_its_element(tmp_path):
    classification_run(tmp_path, ids=[HOSTILE] * 200, classes=(HOSTILE, "b", "c"), columns={HOSTILE: [HOSTILE] * 200})
    text = write([tmp_path]).read_text("utf-8")
    assert text.count("</script>") == 2  # the data's own end, and the program's
    assert HOSTILE in column(split_of(tmp_path / "reports" / "report.html"), "id")["values"]


@pytest.mark.parametrize("damage", ["format", "rows", "parquet"])
def test_damaged_evaluations_are_refused(tmp_path, damage):
    classification_run(tmp_path)
    page = tmp_path / "reports" / "test.json"
    if damage == "parquet":
        (tmp_path / "reports" / "test.parquet").write_bytes(b"PAR1")
    else:
        page.write_text(json.dumps({**json.loads(page.read_text()), damage: 7}))
    with raises_problem(key="reports", remedy="evaluate again"):
        write([tmp_path])


def test_a_report_without_the_parquet_file(tmp_path):
    classification_run(tmp_path)
    (tmp_path / "reports" / "test.parquet").unlink()
    split = split_of(write([tmp_path]))
    assert split["table"] is None
    assert split["samples"]
    assert split["confusion"]
