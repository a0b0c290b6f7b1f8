"""The run directory after a run of the smallest shipped experiment, and how exactly it can be repeated."""

import csv
import json
from pathlib import Path

import keras
import numpy as np
import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

import everstep as es
import everstep.recipes
from everstep.cli.resolving import ExperimentRequest, resolve
from everstep.export.model_export import serving_format
from everstep.task.initial.matching import Report
from everstep.testing.problems import raises_problem
from loop.samples import TinyTask, run, tiny_params

pytestmark = pytest.mark.backend

RECORD = {"id", "experiment", "backend", "status", "step", "epoch", "attempts", "metrics", "digest", "weights_digest"}
RECORD |= {"code", "environment", "data", "cost", "initial_weights", "train_steps", "mode", "states"}
RECORD |= {"name", "tags", "notes", "program", "epochs", "steps_per_epoch", "stopped_early", "final_weights"}


def train(model_dir, params=None, **kwargs):
    params = params or es.get_exp_config("mnist/local")
    task = es.get_task(params.task)
    kwargs = {"experiment": "mnist/local", "export": False, "verbose": False, **kwargs}
    return es.run_experiment(task, params, model_dir, **kwargs)


def record(model_dir):
    return json.loads((Path(model_dir) / "run.json").read_text())


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """A whole run, export included: its directory, model and logs."""
    assert everstep.recipes
    model_dir = tmp_path_factory.mktemp("finished") / "run"
    return model_dir, *train(model_dir, export=True)


def test_files(finished):
    names = {path.name for path in finished[0].iterdir() if not path.name.startswith(".")}
    assert names - {"code.diff"} == {  # there where the code differs from its commit
        *("config.yaml", "run.json", "requirements.txt", "checkpoints", "train", "validation", "history.csv", "export")
    }


def test_record(finished):
    model_dir, _, logs = finished
    found = record(model_dir)
    assert set(found) == RECORD
    assert (found["experiment"], found["backend"]) == ("mnist/local", keras.backend.backend())
    assert (found["status"], found["step"], found["epoch"]) == ("finished", 60, 0)
    assert found["metrics"]["validation"] == logs
    rates = {"steps_per_second", "samples_per_second", "data_wait"}  # the peak of a CPU is unknown
    assert set(found["metrics"]["train"]) == {"training_loss", "accuracy", "learning_rate", *rates}
    assert len(found["digest"]) == len(found["weights_digest"]) == 64
    (attempt,) = found["attempts"]
    assert (attempt["from_step"], attempt["to_step"], attempt["reason"]) == (0, 60, "done")
    assert attempt["started"] < attempt["ended"]
    assert set(found["data"]) == {"train", "validation"}
    assert found["environment"]["engine"]["device"] == "cpu"
    assert found["initial_weights"] == []


def test_history(finished):
    with (finished[0] / "history.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [row["step"] for row in rows] == ["20", "30", "50", "60"]  # loops of 20, cut by evaluations every 30
    assert [bool(row["validation_loss"]) for row in rows] == [False, True, False, True]
    assert all(float(row["training_loss"]) > 0 for row in rows)
    assert float(rows[-1]["validation_accuracy"]) == finished[2]["accuracy"]


def test_tensorboard_events(finished):
    model_dir, _, logs = finished
    for kind, tag, steps in (("train", "training_loss", [20, 30, 50, 60]), ("validation", "validation_loss", [30, 60])):
        events = EventAccumulator(str(model_dir / kind)).Reload()
        assert [event.step for event in events.Scalars(tag)] == steps
    assert events.Scalars("accuracy")[-1].value == pytest.approx(logs["accuracy"])


def test_export(finished):
    model_dir, model, _ = finished
    assert {path.name for path in (model_dir / "export").iterdir()} == {"model.keras", serving_format()[0]}
    images = np.zeros((3, 28, 28), "float32")
    loaded = keras.saving.load_model(model_dir / "export" / "model.keras")
    np.testing.assert_allclose(loaded.predict(images, verbose=0), model.predict(images, verbose=0), rtol=1e-5)


def test_configuration_repeats_the_run_bit_for_bit(finished, tmp_path):
    stored = finished[0] / "config.yaml"
    resolved = resolve(ExperimentRequest(config_files=[str(stored)]))
    assert (resolved.experiment, resolved.params.runtime.backend) == ("mnist/local", keras.backend.backend())
    _, logs = train(tmp_path / "run", resolved.params)
    again, before = record(tmp_path / "run"), record(finished[0])
    assert (again["digest"], again["weights_digest"]) == (before["digest"], before["weights_digest"])
    assert again["data"] == before["data"]
    assert again["id"] != before["id"]
    assert logs["validation_loss"] == finished[2]["validation_loss"]
    assert (tmp_path / "run" / "config.yaml").read_text() == stored.read_text()


def test_seed_changes_the_run(finished, tmp_path):
    params = es.get_exp_config("mnist/local")
    params.override({"runtime": {"seed": 1}})
    train(tmp_path / "run", params, save_summary=False)
    assert record(tmp_path / "run")["digest"] != record(finished[0])["digest"]


@pytest.mark.full
def test_digest_does_not_depend_on_what_is_logged_or_saved(finished, tmp_path):
    params = es.get_exp_config("mnist/local")
    params.override({"trainer": {"validation_interval": 60, "checkpoint_interval": 0, "validation_steps": 1}})
    train(tmp_path / "run", params)
    assert record(tmp_path / "run")["weights_digest"] == record(finished[0])["weights_digest"]


# -- initial weights ---------------------------------------------------------------------------------------------------


class Started(TinyTask):
    """Starts from another run; its model is a part of that one's."""

    def __init__(self, path):
        super().__init__()
        self._task_config = es.TaskConfig(init_checkpoint=str(path))

    def build_model(self):
        return keras.Sequential([keras.Input((4,)), keras.layers.Dense(8)])

    def train_step(self, inputs, model, optimizer, metrics):
        return {"loss": keras.ops.mean(model(inputs[0]))}


def test_initial_weights_are_printed_and_recorded(tmp_path, capsys):
    run("train", tmp_path / "first", train_steps=4)
    for _ in range(2):  # the second time, it resumes
        run("train", tmp_path / "second", task=Started(tmp_path / "first"), train_steps=4, verbose=True)
    printed = capsys.readouterr().err.splitlines()
    (found,) = record(tmp_path / "second")["initial_weights"]
    assert found["path"].startswith(str(tmp_path / "first"))
    assert (found["matched"], found["missing"]) == (["dense/kernel", "dense/bias"], [])
    assert sorted(found["unexpected"]) == ["model/dense_1/bias", "model/dense_1/kernel"]
    assert len([line for line in printed if line.startswith("2 of the model's 2 weights come from")]) == 1
    assert len([line for line in printed if line.startswith("not used from there: model/dense_1/")]) == 1


def test_initial_weights_of_several_parts(tmp_path):
    class Parts(TinyTask):
        def initialize(self, model):
            return [None, Report("a", "file", ("dense/kernel",)), Report("b", "file", ("dense/bias",))]

    run("train", tmp_path / "run", task=Parts(), train_steps=4)
    assert [report["path"] for report in record(tmp_path / "run")["initial_weights"]] == ["a", "b"]


# -- runs that fail ----------------------------------------------------------------------------------------------------


def test_failure_before_the_first_step_leaves_nothing(tmp_path):
    params = es.get_exp_config("mnist/local")
    params.override({"task": {"init_checkpoint": str(tmp_path / "missing.keras")}})
    with raises_problem(key="task.init_checkpoint", reason="no such file"):
        train(tmp_path / "run", params)
    assert not (tmp_path / "run").exists()


def test_failure_before_the_first_step_keeps_existing_files(tmp_path):
    class Broken(TinyTask):
        def train_step(self, inputs, model, optimizer, metrics):
            return {}

    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "notes.txt").write_text("mine")
    with raises_problem(key="Broken.train_step", reason="returned no 'loss'"):
        run("train", tmp_path / "run", task=Broken())
    assert {path.name for path in (tmp_path / "run").iterdir()} <= {"notes.txt", ".lock"}


def test_failure_after_steps_keeps_the_run(tmp_path):
    def fail(logs):
        raise RuntimeError("the disk is full\nor so")

    with pytest.raises(RuntimeError, match="the disk is full"):
        run("train", tmp_path / "run", train_actions=[fail])
    found = record(tmp_path / "run")
    assert (found["status"], found["step"], found["digest"]) == ("failed", 4, None)
    assert found["attempts"][0]["reason"] == "RuntimeError: the disk is full"
    run("train", tmp_path / "run")
    assert record(tmp_path / "run")["status"] == "finished"
    assert len(record(tmp_path / "run")["attempts"]) == 2


def test_changed_model_is_refused_and_the_run_kept(tmp_path):
    class Wider(TinyTask):
        def build_model(self):
            return keras.Sequential([keras.Input((4,)), keras.layers.Dense(9), keras.layers.Dense(1)])

    run("train", tmp_path / "run")
    before = (tmp_path / "run" / "run.json").read_bytes()
    with raises_problem(reason="does not fit", remedy=r"shape of model/dense/kernel: here \(4, 9\)"):
        run("train", tmp_path / "run", task=Wider(), train_steps=16)
    assert (tmp_path / "run" / "run.json").read_bytes() == before


@pytest.mark.full
def test_random_evaluation_does_not_touch_the_digest(tmp_path):
    """A finished run keeps its digest, whatever evaluations have drawn since the last training step."""

    class Noisy(TinyTask):
        def build_model(self):
            self.seed = keras.random.SeedGenerator(1)
            return super().build_model()

        def inference_step(self, inputs, model):
            outputs = super().inference_step(inputs, model)
            return outputs + keras.random.normal(keras.ops.shape(outputs), seed=self.seed)

    for _ in range(2):
        run("train_and_eval", tmp_path / "run", task=Noisy(), params=tiny_params(train_steps=4))
        digests = record(tmp_path / "run")["digest"]
    run("train", tmp_path / "alone", task=Noisy(), params=tiny_params(train_steps=4))
    assert record(tmp_path / "alone")["digest"] == digests
