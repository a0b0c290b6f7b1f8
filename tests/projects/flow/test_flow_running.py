"""A flow from its name to its record: trained on the loop, tracked live, resumed, failed with what it had."""

import json
import os
from pathlib import Path

import keras
import numpy as np
import pytest
from flow_project import mlflow_rows

from everstep import storage
from everstep.errors import UsageError
from everstep.flow import FlowProject, create_task, run_flow
from everstep.projects.flow.recording import RESULTS, SHORT
from everstep.projects.flow.training import _test
from everstep.run.lock import is_held
from everstep.testing.problems import raises_problem
from everstep.tracking.mlflow import MlflowNames

pytestmark = [pytest.mark.backend, pytest.mark.filterwarnings("ignore::DeprecationWarning")]


SAME = ("Numbers_B.validation_split=0.25", "Numbers_B.seed=7")


def run(project, name, *overrides, **settings):
    return run_flow(name, overrides, project, verbose=False, **settings)


def record(done):
    return json.loads((done.directory / "run.json").read_text())


def test_the_record_says_which_flow_what_code_and_what_data(finished):
    root, saved = finished.directory.parent.parent, record(finished)
    assert saved["status"] == "finished"
    assert saved["flow"] == {"task": "Numbers_B", "project": str(root), "complete": True}
    assert saved["data"]["numbers.raw"]["sha256"]
    assert saved["code"]["commit"]
    assert saved["code"]["dirty"]
    assert saved["metrics"]["test"] == dict(finished.metrics)
    assert finished.directory.parent == root / "runs"
    assert type(finished.model.optimizer).__name__ == "SGD"


def test_the_saved_model_has_the_accuracy_that_was_logged(finished):
    data = finished.directory.parent.parent / "data"
    assert (data / "report" / "Numbers_B-training.png").read_bytes().startswith(b"\x89PNG")
    assert (data / "model" / "Numbers_B.keras").is_file()
    model = keras.saving.load_model(finished.directory / "model.keras", compile=False)
    with np.load(data / "raw" / "numbers.npz") as arrays:
        answers = keras.ops.convert_to_numpy(model(arrays["x"][96:])).argmax(axis=1)
        accuracy = np.mean(answers == arrays["y"][96:])
    assert finished.metrics["test acc"] == pytest.approx(accuracy, abs=1e-6)


@pytest.mark.parametrize(
    ("metrics", "names"),
    [
        (["accuracy", "sparse_top_k_categorical_accuracy"], ["test acc", "test sparse_top_k_categorical_accuracy"]),
        (["sparse_top_k_categorical_accuracy"], ["test sparse_top_k_categorical_accuracy"]),
    ],
)
def test_another_accuracy_has_its_own_name(metrics, names):
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(9, activation="softmax")])
    model.compile("sgd", "sparse_categorical_crossentropy", metrics=metrics)
    test = np.ones((4, 4), "float32"), np.arange(4)
    found = {"test": {"model.evaluate": _test(model, test, 2)}}
    assert sorted(MlflowNames("", results=RESULTS, short=SHORT).named(found)) == sorted([*names, "test loss"])


def test_a_failure_in_the_second_epoch_keeps_the_first_and_the_next_run_goes_on(finished, project):
    failing = (*SAME, "Numbers_B.fails_in=2")
    with pytest.raises(RuntimeError, match="on fire"):
        run(project, "Numbers_B", *failing)
    (failed,) = (project / "runs").iterdir()
    assert json.loads((failed / "run.json").read_text())["status"] == "failed"
    assert mlflow_rows(project, "select status from runs") == [("FAILED",)]
    epochs = [("accuracy", 0), ("loss", 0), ("val_accuracy", 0), ("val_loss", 0)]
    assert sorted(mlflow_rows(project, "select key, step from metrics")) == epochs
    done = run(project, "Numbers_B", *failing)
    assert done.directory == failed
    assert mlflow_rows(project, "select status from runs") == [("FINISHED",)]
    assert len(record(done)["attempts"]) == 2
    assert done.history == finished.history  # the same seed: the same numbers, in another project, after a failure
    assert done.metrics == finished.metrics
    assert record(done)["weights_digest"] == record(finished)["weights_digest"]


def test_a_run_that_is_done_is_left_alone(finished):
    root, name = finished.directory.parent.parent, finished.directory.name
    chosen = {new: create_task("Numbers_B", SAME, root, new=new)._everstep_opened().directory for new in (False, True)}
    assert chosen == {False: root / "runs" / f"{name}-2", True: root / "runs" / f"{name}-2"}


def test_steps_are_called_one_by_one_as_in_a_notebook(project, monkeypatch):
    (project / "notebook").mkdir()
    monkeypatch.chdir(project / "notebook")
    task = create_task("Numbers_B", ["Numbers_B.epoch=1"])
    task.fetch_data()
    task.preprocessing_train()
    assert task.dataset.train_data.shape == (96, 4)
    assert not (project / "runs").exists()


@pytest.mark.parametrize(
    ("name", "fields"),
    [
        (
            "Numbers_C",
            {
                "received": "Numbers_C",
                "reason": "there is no such task",
                "remedy": "did you mean .*: More, Numbers_A, Numbers_B, OwnR",
            },
        ),
        ("Unfinished", {"received": "Unfinished", "reason": r"lacks preprocessing_train\(\) and build_model\(\)"}),
    ],
)
def test_a_task_that_cannot_run_is_named(project, name, fields):
    with raises_problem(key="task", **fields):
        run(project, name)
    assert not (project / "runs").exists()


def test_missing_data_is_named_before_anything_is_written(bare_project):
    project = bare_project
    (project / "data" / "raw" / "numbers.npz").unlink()
    with raises_problem(key="numbers.raw", reason=rf"{project}/data/raw/numbers\.npz"):
        run(project, "Numbers_A")
    assert not (project / "runs").exists()
    assert not (project / "mlflow.db").exists()


def test_an_optimizer_of_the_models_own_does_not_pass_over_the_file(project):
    code = (project / "train.py").read_text()
    built = 'keras.Sequential(layers, name="linear")'
    code = code.replace(
        f"return {built}", f'model = {built}\n        model.compile("adam", "mse")\n        return model'
    )
    (project / "train.py").write_text(code)
    with raises_problem(
        key="Numbers_A.build_model()", reason=r"optimizer\.yaml would be ignored", remedy="build_optimizer"
    ):
        run(project, "Numbers_A")


@pytest.mark.daily("torch")
def test_rates_by_layer_are_refused(project):
    with pytest.raises(UsageError) as error:
        run(project, "Numbers_A", "optimizer.layer_rates.decay=0.9")
    assert error.value.key == "optimizer.layer_rates"


@pytest.mark.parametrize("hook", ["build_model", "build_serving_model"])
def test_what_is_no_model_is_told_before_anything_is_trained(project, hook):
    words = "self" if hook == "build_model" else "self, model"
    code = (project / "train.py").read_text()
    code = code.replace(
        "class Numbers_B(Numbers_A):\n    pass", f"class Numbers_B(Numbers_A):\n    def {hook}({words}): ..."
    )
    (project / "train.py").write_text(code)
    with raises_problem(key=f"Numbers_B.{hook}()", reason="returned None, expected a keras.Model"):
        run(project, "Numbers_B")
    assert not (project / "runs").exists()


def test_no_project_is_told(tmp_path):
    with raises_problem(reason="no project in", remedy="everstep new PROJECT"):
        FlowProject.find(tmp_path)


def test_a_folder_of_somebody_elses_is_left_alone(project, tmp_path):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "requirements.txt").write_text("mine==1\n")
    with raises_problem(key="model_dir", reason=r"'requirements\.txt' in it is not a run's"):
        run(project, "Numbers_B", model_dir=tmp_path / "mine")
    assert [path.name for path in (tmp_path / "mine").iterdir()] == ["requirements.txt"]


def test_the_record_is_written_only_while_the_run_is_this_processs_alone(project, monkeypatch):
    written, replace = [], os.replace

    def watched(source, target):
        if Path(target).name == "run.json":
            written.append(is_held(Path(target).parent))
        replace(source, target)

    monkeypatch.setattr(storage.os, "replace", watched)
    done = run(project, "Numbers_B", "Numbers_B.epoch=1")
    assert record(done)["flow"]["complete"]
    assert record(done)["metrics"]["test"] == dict(done.metrics)
    assert len(written) > 2
    assert all(written)
