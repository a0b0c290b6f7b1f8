"""What a task logs with MLflow's own functions belongs to the flow's run, wherever and in whichever step it does."""

import os

import mlflow
import pytest
from flow_project import mlflow_rows

from everstep.errors import TrainingError
from everstep.flow import DataSet, FlowTask, create_task, run_flow
from everstep.run.record import read

pytestmark = [pytest.mark.backend, pytest.mark.filterwarnings("ignore::DeprecationWarning")]


class Own(FlowTask):
    def fetch_data(self):
        self.x = 3.0

    def preprocessing_train(self):
        self.dataset = DataSet([self.x])

    def run(self):
        mlflow.log_metric("answer", self.x, step=2)
        mlflow.log_param("chosen", "by hand")
        self.log_metrics({"other": 1.0})
        return {"answer": self.x}


class Around(Own):
    def run(self):
        with mlflow.start_run(nested=True):
            mlflow.log_metric("inner", 1.0)
        with mlflow.start_run(run_name="named"):
            mlflow.log_metric("named", 1.0)
        mlflow.end_run()
        metrics = super().run()
        assert mlflow.active_run().info.run_name == self._everstep_opened().directory.name
        return metrics


class Failing(Own):
    def run(self):
        mlflow.log_metric("answer", self.x)
        raise RuntimeError("no answer")


RUNS = """
select experiments.name, runs.status, metrics.key from runs join experiments using (experiment_id)
left join metrics using (run_uuid) order by metrics.key
"""


def test_an_own_run_logs_to_the_flows_run_from_another_folder(project, tmp_path, monkeypatch):
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    monkeypatch.chdir(elsewhere)
    done = run_flow(Own, (), project, verbose=False)
    assert mlflow_rows(project, RUNS) == [
        ("numbers_exp", "FINISHED", "answer"),
        ("numbers_exp", "FINISHED", "other"),
    ]
    assert ("chosen", "by hand") in mlflow_rows(project, "select key, value from params")
    assert read(done.directory)["status"] == "finished"
    assert list(elsewhere.iterdir()) == []
    assert "MLFLOW_TRACKING_URI" not in os.environ


@pytest.mark.daily("torch")
def test_runs_that_the_task_starts_are_nested_in_the_flows_run(project):
    run_flow(Around, (), project, verbose=False)
    found = {(experiment, key) for experiment, _, key in mlflow_rows(project, RUNS)}
    assert found == {("numbers_exp", key) for key in ("answer", "other", "inner", "named")}
    assert mlflow_rows(project, "select count(*) from tags where key = 'mlflow.parentRunId'") == [(2,)]
    assert mlflow_rows(project, "select count(*) from runs where status = 'FINISHED'") == [(3,)]
    assert mlflow.start_run is mlflow.tracking.fluent.start_run


@pytest.mark.daily("torch")
def test_what_fails_has_what_was_logged(project):
    with pytest.raises(RuntimeError, match="no answer"):
        run_flow(Failing, (), project, verbose=False)
    assert mlflow_rows(project, RUNS) == [("numbers_exp", "FAILED", "answer")]


class FromTheBeginning(Own):
    def __init__(self):
        mlflow.log_param("begun", "early")

    def fetch_data(self):
        super().fetch_data()
        mlflow.log_metric("fetched", 1.0)


def by_run(task):
    task.run()


def step_by_step(task):
    task.fetch_data()
    task.preprocessing_train()
    task.run()


@pytest.mark.parametrize("call", [by_run, step_by_step])
@pytest.mark.daily("torch")
def test_steps_that_a_notebook_calls_log_to_the_run_too(project, tmp_path, monkeypatch, call):
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    task = create_task(FromTheBeginning, (), project, verbose=False)
    call(task)
    assert mlflow_rows(project, RUNS) == [("numbers_exp", "FINISHED", key) for key in ("answer", "fetched", "other")]
    assert ("begun", "early") in mlflow_rows(project, "select key, value from params")
    assert task.metrics == {"answer": 3.0}
    record = read(task.directory)
    assert (record["status"], record["flow"]["complete"]) == ("finished", True)
    assert list((tmp_path / "elsewhere").iterdir()) == []


class Hasty(Own):
    def __init__(self):
        mlflow.log_param("begun", "early")
        raise RuntimeError("no data yet")


@pytest.mark.daily("torch")
def test_a_constructor_that_fails_ends_the_run(project):
    with pytest.raises(RuntimeError, match="no data yet"):
        create_task(Hasty, (), project, verbose=False)
    assert mlflow_rows(project, "select status from runs") == [("FAILED",)]


class Twice(Own):
    def run(self):
        mlflow.log_params({"epoch": self.params.epoch, "batch_size": self.params.batch_size})
        return {"answer": self.x}


@pytest.mark.daily("torch")
def test_a_parameter_that_the_task_logs_as_well_is_no_conflict(project):
    """Those of the flow are at the server before MLflow's own functions use the run: no race decides."""
    task = create_task("Numbers_B", (), project)
    task.__class__ = type("Numbers_B", (Twice,), {})
    task.run()
    params = dict(mlflow_rows(project, "select key, value from params"))
    assert (params["epoch"], params["batch_size"]) == ("3", "16")
    assert not list(project.glob("runs/*/spool/*.refused.jsonl"))


BEGUN = """    def on_train_begin(self, logs=None):
        import mlflow

        mlflow.log_metric("begun", 1.0)

"""


def edited(project, *edits):
    """Replaces texts in the project's `train.py`, each once."""
    code = (project / "train.py").read_text()
    for old, new in edits:
        assert old in code
        code = code.replace(old, new, 1)
    (project / "train.py").write_text(code)


def test_every_step_and_callbacks_log_to_the_run_of_the_default_one(project):
    edited(
        project,
        ("import keras\n", "import keras\nimport mlflow\n"),
        ("        self.raw =", '        mlflow.log_param("step", "fetch")\n        self.raw ='),
        ("        return keras.Sequential", '        mlflow.set_tag("built", "yes")\n        return keras.Sequential'),
        ("    def on_epoch_begin", f"{BEGUN}    def on_epoch_begin"),
    )
    done = run_flow("Numbers_B", ["Numbers_B.epoch=1"], project, verbose=False)
    assert mlflow_rows(project, "select count(*) from runs") == [(1,)]
    keys = {key for (key,) in mlflow_rows(project, "select key from metrics")}
    assert keys == {"begun", "loss", "accuracy", "test loss", "test acc"}
    params = dict(mlflow_rows(project, "select key, value from params"))
    assert (params["step"], params["data"], params["model name"]) == ("fetch", "data/raw/numbers.npz", "linear")
    assert ("built", "yes") in mlflow_rows(project, "select key, value from tags")
    assert read(done.directory)["status"] == "finished"


@pytest.mark.daily("torch")
def test_a_callback_alone_logs_to_it_too(project):
    edited(project, ("    def on_epoch_begin", f"{BEGUN}    def on_epoch_begin"))
    task = create_task("Numbers_B", ["Numbers_B.epoch=1"], project, verbose=False)
    task.run()
    assert mlflow_rows(project, "select count(*) from runs") == [(1,)]
    assert ("begun",) in mlflow_rows(project, "select key from metrics")
    assert len(read(task.directory)["attempts"]) == 1


@pytest.mark.daily("torch")
def test_without_a_server_the_task_is_told_what_to_use(project, monkeypatch):
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://127.0.0.1:9")
    monkeypatch.setattr("everstep.tracking.mlflow._SECONDS_TO_CREATE_A_RUN", 0.2)
    with pytest.raises(TrainingError) as error:
        run_flow(Own, (), project, verbose=False)
    assert "self.log_metrics" in error.value.remedy
    assert os.environ["MLFLOW_TRACKING_URI"] == "http://127.0.0.1:9"
