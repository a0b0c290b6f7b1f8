"""The record of a flow on MLflow, read back by MLflow's own client from the project's store."""

import json
import subprocess

import mlflow
import pytest
from mlflow.entities import ViewType

pytestmark = [pytest.mark.backend, pytest.mark.filterwarnings("ignore::DeprecationWarning")]


@pytest.fixture(scope="module")
def client(finished):
    return mlflow.MlflowClient(f"sqlite:///{finished.directory.parent.parent / 'mlflow.db'}")


@pytest.fixture(scope="module")
def tracked(finished, client):
    """The run, as MLflow has it."""
    experiment = client.get_experiment_by_name("numbers_exp")
    found = client.search_runs([experiment.experiment_id], run_view_type=ViewType.ALL)
    return next(run for run in found if run.info.run_name == finished.directory.name)


def downloaded(client, run, name, folder):
    with open(client.download_artifacts(run.info.run_id, name, str(folder)), encoding="utf-8") as file:
        return file.read()


def test_the_run_has_its_tags_and_every_parameter(finished, tracked):
    assert tracked.info.status == "FINISHED"
    tags, params = tracked.data.tags, tracked.data.params
    assert (tags["task"], tags["chain"]) == ("Numbers_B", "Numbers_B <- Numbers_A <- FlowTask")
    assert tags["data.numbers.raw.sha256"]
    assert "with changes" in tags["code version"]
    assert (params["data"], params["epoch"], params["model name"]) == ("data/raw/numbers.npz", "3", "linear")
    leaves = {"seed": "7", "batch_size": "16", "widths.first": "3", "validation_split": "0.25", "fails_in": "None"}
    assert leaves.items() <= params.items()
    assert params["catalog.numbers.raw.filepath"] == "data/raw/numbers.npz"
    assert params["optimizer.optimizer.type"] == "sgd"
    assert params["optimizer.learning_rate.constant.learning_rate"] == "0.1"


def test_the_numbers_of_every_epoch_and_of_the_end_are_there(finished, client, tracked):
    for name in ("loss", "accuracy", "val_loss", "val_accuracy"):
        points = client.get_metric_history(tracked.info.run_id, name)
        assert [point.step for point in points] == [0, 1, 2]
        assert [point.value for point in points] == pytest.approx(finished.history[name])
        assert points == sorted(points, key=lambda point: point.timestamp)
    assert tracked.data.metrics["test acc"] == finished.metrics["test acc"]
    assert tracked.data.metrics["test loss"] == finished.metrics["test loss"]


def test_files_say_what_it_was_made_of_and_in(finished, client, tracked, tmp_path):
    about = ("environment.json", "requirements.txt", "code.diff")
    assert {file.path for file in client.list_artifacts(tracked.info.run_id)} == {
        "training.png",
        "model.keras",
        "config.yaml",
        "flow.yaml",
        *about,
    }
    facts = json.loads(downloaded(client, tracked, "environment.json", tmp_path))
    root = finished.directory.parent.parent
    head = subprocess.run(["git", "rev-parse", "HEAD"], cwd=root, capture_output=True, text=True, check=True)
    assert facts["code"]["commit"] == head.stdout.strip()
    assert facts["hardware"]["cpu_count"] > 0
    assert facts["hardware"]["memory_bytes"] > 2**20
    assert facts["hardware"]["devices"]
    assert "\n+# not committed\n" in downloaded(client, tracked, "code.diff", tmp_path)
    assert "\nkeras==" in downloaded(client, tracked, "requirements.txt", tmp_path)
    assert "validation_split: 0.25" in downloaded(client, tracked, "flow.yaml", tmp_path)
