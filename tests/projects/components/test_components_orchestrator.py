"""A run from its config file to its reports, and again."""

import csv
import json
import shutil
from pathlib import Path

import keras
import numpy as np
import pytest
import yaml
from components_project import EVALUATION, MODELS, SIZES, SOURCES, write_run, write_source

from everstep.components import Orchestrator
from everstep.errors import TrainingError
from everstep.projects.components import orchestrator
from everstep.projects.components.config import ConfigStruct
from everstep.projects.components.export import DamagedExport
from everstep.projects.components.exported_model import model_name
from everstep.projects.components.keras_trainer import into_run_folder
from everstep.projects.components.orchestrator import mlflow_names
from everstep.projects.components.run_folder import RunFolder
from everstep.projects.project_tracking import Tracking
from everstep.testing.problems import raises_problem

pytestmark = [pytest.mark.backend, pytest.mark.filterwarnings("ignore::DeprecationWarning")]


class Recorded(Tracking):
    def __init__(self):
        self.epochs, self.evaluations = [], []

    def log(self, step, values):
        self.epochs.append((step, dict(values)))

    def log_evaluation(self, number, results):
        names = mlflow_names("a", ConfigStruct({"project_name": "mnist"}), Path())
        self.evaluations.append((number, names.named(results)))


@pytest.fixture
def tracked(monkeypatch):
    """What a run tracks, without MLflow."""
    recorded = Recorded()
    monkeypatch.setattr(orchestrator, "create_tracking", lambda *_: recorded)
    return recorded


def run(root, data, name="a"):
    return Orchestrator(name, root, data, verbose=False).run()


def rows(path):
    with open(path, newline="") as file:
        return list(csv.reader(file))


@pytest.mark.parametrize("flavour", ["", pytest.param("TF", marks=pytest.mark.full)])
def test_a_run_from_config_to_reports(tmp_path, data, tracked, flavour, monkeypatch):
    monkeypatch.setenv("EVAL_REPORTS_DIR", str(tmp_path / "common"))
    write_source(tmp_path)
    folder = write_run(tmp_path, flavour=flavour)
    before = (folder / "config.yaml").read_text()
    results = run(tmp_path, data)

    assert (folder / "config.yaml").read_text() == before
    assert (folder / "exported" / model_name()).exists()
    assert json.loads((folder / "exported" / "export.json").read_text())["model"] == model_name()
    assert yaml.safe_load((folder / "exported" / "config.yaml").read_text())["data_dir"] == str(data)
    for name, split in (("validation_report.csv", "validation"), ("eval_report.csv", "test")):
        table = rows(folder / name)
        assert table[0] == ["", "sparse categorical ce"]
        assert [row[0] for row in table[1:]] == [f"image_{i}.png" for i in range(SIZES[split])]
        mean = np.mean([float(row[1]) for row in table[1:]])
        assert results[split]["eval_funcs"]["sparse categorical ce"] == pytest.approx(mean)
        assert results[split]["model.evaluate"]["loss"] == pytest.approx(mean, rel=1e-4)
    assert rows(tmp_path / "common" / "mnist" / "a" / "eval_report.csv") == rows(folder / "eval_report.csv")

    assert [epoch for epoch, _ in tracked.epochs] == [0, 1]
    assert set(tracked.epochs[0][1]) == {
        *("loss", "val_loss", "sparse_categorical_accuracy", "val_sparse_categorical_accuracy")
    }
    assert set(tracked.evaluations[0][1]) == {
        f"{split}_{name}"
        for split in ("validation", "test")
        for name in ("_model.evaluate_loss", "_model.evaluate_sparse_categorical_accuracy", "sparse categorical ce")
    }
    best = min(tracked.epochs, key=lambda each: each[1]["val_loss"])
    exported = json.loads((folder / "exported" / "export.json").read_text())
    assert exported["epoch"] == best[0]
    assert exported["val_loss"] == best[1]["val_loss"]
    assert results["validation"]["model.evaluate"]["loss"] == pytest.approx(best[1]["val_loss"], rel=1e-4)
    assert json.loads((folder / "run.json").read_text())["status"] == "finished"

    if flavour:  # the rest does not depend on it
        return
    again = run(tmp_path, data)
    assert again == results == Orchestrator("a", tmp_path, data, verbose=False).evaluate()
    assert len(tracked.epochs) == 2
    assert [number for number, _ in tracked.evaluations] == [0, 0, 0]


@pytest.mark.full
def test_more_epochs_and_only_the_models_own_metrics(tmp_path, data, tracked):
    """Extended, a run ends as one that was long from the beginning; NaN is never the best; no functions, no rows."""
    write_source(tmp_path, models=MODELS + CALLBACKS)
    builder = {"model_builder_class": "models.Watched", "evaluator_class": "evaluation.Own"}
    folder = write_run(tmp_path, epochs=1, **builder)
    run(tmp_path, data)
    write_run(tmp_path, epochs=3, **builder)
    results = run(tmp_path, data)
    long = write_run(tmp_path, "long", epochs=3, **builder)
    assert run(tmp_path, data, "long") == results
    digests = [json.loads((each / "run.json").read_text())["digest"] for each in (folder, long)]
    assert digests[0] == digests[1]
    assert results["test"]["eval_funcs"] == {}
    assert not (folder / "eval_report.csv").exists()
    assert [path.name for path in (folder / "model_checkpoints").iterdir()] == ["mine.weights.h5"]
    assert not (tmp_path / "elsewhere").exists()


CALLBACKS = """

    class Watched(ModelBuilder):
        def get_callbacks(self):
            return [keras.callbacks.ModelCheckpoint("elsewhere/mine.weights.h5", save_weights_only=True)]

        def get_class_weight(self):
            return {0: 2.0, 1: 0.5}
"""


def test_what_is_refused_before_anything_is_trained(tmp_path, data, tracked):
    write_source(tmp_path)
    folder = write_run(tmp_path, export={"metric": "val_acc", "mode": "max"})
    with raises_problem(
        key="export.metric", received="val_acc", reason=r"no epoch has this metric \(metrics: .*val_loss"
    ) as refused:
        run(tmp_path, data)
    assert "config.yaml:" in refused.value.origin
    assert not (folder / "training").exists()
    assert not (folder / "run.json").exists()
    with raises_problem(key="run", reason="contains no export", remedy="train the run first"):
        Orchestrator("a", tmp_path, data).evaluate()


@pytest.mark.full
def test_another_value_is_refused_and_a_damaged_export_is_made_again(tmp_path, data, tracked):
    write_source(tmp_path)
    folder = write_run(tmp_path)
    results = run(tmp_path, data)
    (folder / "exported" / "savedmodel" / "saved_model.pb").write_bytes(b"half")
    with raises_problem(DamagedExport, key="run", reason="is damaged"):
        Orchestrator("a", tmp_path, data).evaluate()
    assert run(tmp_path, data) == results
    shutil.rmtree(folder / "exported")
    assert run(tmp_path, data) == results
    assert len(tracked.epochs) == 2

    changed = {"name": "baseline", "activation": "tanh", "n_filters": 16, "dropout_rate": 0.2}
    write_run(tmp_path, model_builder=changed)
    with raises_problem(key="model_builder.activation"):
        run(tmp_path, data)
    write_run(tmp_path, export={"metric": "loss", "mode": "min"})
    with raises_problem(key="export.metric", received="loss", remedy="another name"):
        run(tmp_path, data)


@pytest.mark.full
def test_nan_is_never_the_best(tmp_path, data, tracked):
    broken = MODELS.replace(
        "keras.losses.SparseCategoricalCrossentropy()", "lambda y, p: keras.ops.mean(p) * float('nan')"
    )
    write_source(tmp_path, models=broken)
    write_run(tmp_path)
    with pytest.raises(TrainingError):
        run(tmp_path, data)
    assert not (tmp_path / "runs" / "a" / "exported").exists()


@pytest.mark.full
def test_one_export_through_both_loaders(tmp_path, data, tracked):
    """The same PNG files decoded by TensorFlow and by PIL give the same rows."""
    write_source(tmp_path)
    folder = write_run(tmp_path)
    run(tmp_path, data)
    first = rows(folder / "eval_report.csv")
    write_run(tmp_path, flavour="TF")
    Orchestrator("a", tmp_path, data, verbose=False).evaluate()
    second = rows(folder / "eval_report.csv")
    assert [row[0] for row in first] == [row[0] for row in second]
    difference = max(abs(float(a[1]) - float(b[1])) for a, b in zip(first[1:], second[1:], strict=True))
    print(f"largest difference between the loaders' rows: {difference:.2e}")
    assert difference < 1e-5


@pytest.mark.full
def test_changed_functions_are_a_new_evaluation(tmp_path, data, tracked):
    write_source(tmp_path)
    write_run(tmp_path)
    run(tmp_path, data)
    write_source(
        tmp_path, evaluation=EVALUATION.replace("return scce(y_true, y_pred)", "return 2 * scce(y_true, y_pred)")
    )
    run(tmp_path, data)
    assert [number for number, _ in tracked.evaluations] == [0, 1]


@pytest.mark.parametrize(
    ("old", "new", "fields"),
    [
        ("return model", "return None", {"reason": r"get_compiled_model\(\): must return a compiled .*returned None"}),
        ("model.compile(", "dict(", {"reason": "is not compiled", "remedy": "call model.compile"}),
        ("m_config.n_filters", "m_config.filters", {"key": "model_builder.filters", "remedy": "'n_filters'"}),
        ("get_compiled_model", "get_model", {"reason": "models.ModelBuilder does not define get_compiled_model"}),
        (
            "keras.Input((",
            "keras.Input((1 // 0 * ",
            {"reason": r"get_compiled_model\(\) failed at .*models.py:\d+: ZeroDivision"},
        ),
        (
            "self.activation = m_config",
            "self.activation = config.nothing",
            {"key": "nothing", "reason": "is read but not set"},
        ),
    ],
)
def test_builders_that_cannot_be_trained(tmp_path, data, tracked, old, new, fields):
    write_source(tmp_path, models=MODELS.replace(old, new))
    folder = write_run(tmp_path)
    with raises_problem(**{"key": "model_builder_class", **fields}) as refused:
        run(tmp_path, data)
    assert "config.yaml" in refused.value.origin
    assert "\n" not in str(refused.value)
    assert not (folder / "training").exists()


@pytest.mark.parametrize(
    ("module", "old", "new", "fields"),
    [
        (
            "evaluation",
            '"sparse categorical ce"',
            '"label"',
            {"key": "evaluator_class", "reason": "evaluation.Evaluator: .*received 'label', is a reserved column"},
        ),
        (
            "evaluation",
            "self.get_cat_loss()}",
            "3}",
            {"key": "evaluator_class", "reason": "received 3, needs a function f.y_true, y_pred."},
        ),
        (
            "evaluation",
            'return {"sparse',
            'return self.nothing or {"sparse',
            {"key": "evaluator_class", "reason": r"failed at .*evaluation.py:\d+: Attribute"},
        ),
        (
            "dataset",
            "return [row[",
            "return [0] + [row[",
            {"key": "data_loader_class", "reason": r"get_validation_index\(\): returned 26 ids for 25"},
        ),
        (
            "dataset",
            "rows = self._rows(self.test_data_dir)",
            "rows = 1 / 0",
            {"key": "data_loader_class", "reason": r"create_test_generator\(\) failed at"},
        ),
    ],
)
def test_what_would_fail_after_training_is_refused_before(tmp_path, data, tracked, module, old, new, fields):
    write_source(tmp_path, **{module: SOURCES[f"{module}.py"].replace(old, new)})
    folder = write_run(tmp_path)
    with raises_problem(**fields) as refused:
        run(tmp_path, data)
    assert "config.yaml" in str(refused.value)
    assert not (folder / "training").exists()


def test_callbacks_write_into_the_runs_folder(tmp_path):
    folder = RunFolder(tmp_path, "a")
    folder.path.mkdir(parents=True)
    board = keras.callbacks.TensorBoard("elsewhere")
    best = keras.callbacks.ModelCheckpoint("elsewhere/{epoch:02d}.keras")
    assert into_run_folder([board, [best]], folder) == [board, best]
    assert board.log_dir == str(folder.path / "logs" / "callback")
    assert best.filepath == str(folder.path / "model_checkpoints" / "{epoch:02d}.keras")
    with raises_problem(key="get_callbacks()", reason="must return Keras callbacks"):
        into_run_folder([print], folder)
