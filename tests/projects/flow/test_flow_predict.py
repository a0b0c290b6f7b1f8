"""Predictions of a flow: by its run directory, or by its id on MLflow, from anywhere in the project."""

import contextlib
import csv
import json
import shutil

import keras
import numpy as np
import pytest

from everstep.cli.main import main
from everstep.testing.problems import raises_problem
from everstep.trained.finding import opened

pytestmark = [pytest.mark.backend, pytest.mark.filterwarnings("ignore::DeprecationWarning")]


@pytest.fixture
def root(finished, monkeypatch):
    """The project of a run that ended; the working directory is below it."""
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    root = finished.directory.parents[1]
    monkeypatch.chdir(root / "config")
    return root


@contextlib.contextmanager
def moved_away(directory, tmp_path):
    """Inside the block only MLflow has the model."""
    away = tmp_path / "away"
    directory.rename(away)
    try:
        yield
    finally:
        away.rename(directory)


def remote_id(done):
    return json.loads((done.directory / "spool" / "mlflow.sent.json").read_text())["remote_id"]


def predicted(run, data, output):
    assert main(("predict", run, "--input", str(data), "--output", str(output))) == 0
    with open(output, encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def test_accuracy_is_the_one_that_was_logged_wherever_the_model_is(finished, root, tmp_path):
    with np.load(root / "data" / "raw" / "numbers.npz") as arrays:
        np.savez(tmp_path / "test.npz", x=arrays["x"][96:])
        labels = arrays["y"][96:]
    identity = remote_id(finished)
    with opened(identity) as found:
        assert found.directory == finished.directory
    by_directory = predicted(str(finished.directory), tmp_path / "test.npz", tmp_path / "directory.csv")
    with moved_away(finished.directory, tmp_path):
        from_store = predicted(identity, tmp_path / "test.npz", tmp_path / "store.csv")
    assert by_directory == from_store
    answers = [int(row["prediction"]) for row in from_store]
    assert np.mean(answers == labels) == pytest.approx(finished.metrics["test acc"], abs=1e-6)


def test_what_mlflow_has_is_fetched_and_gone_again(finished, root, tmp_path):
    model, identity = (finished.directory / "model.keras").read_bytes(), remote_id(finished)
    with opened(f"runs:/{identity}/model.keras") as found:
        assert found.model.read_bytes() == model
        assert found.backend == keras.backend.backend()
        assert found.record["metrics"]["mlflow"]["test acc"] == pytest.approx(finished.metrics["test acc"])
    assert not found.model.parent.exists()
    with raises_problem(key="RUN", received="1" * 32, reason=r"searched stores: sqlite:///.*mlflow\.db$"):
        opened("1" * 32).__enter__()
    with raises_problem(key="MLflow", reason="cannot be reached: .*'nothing'"):
        opened(f"runs:/{identity}/nothing").__enter__()


def test_a_flow_that_did_not_come_to_its_end(finished, tmp_path, capsys):
    shutil.copytree(finished.directory, tmp_path / "run", ignore=shutil.ignore_patterns("model.keras"))
    np.save(tmp_path / "in.npy", np.zeros((1, 4), "float32"))
    words = ("--input", str(tmp_path / "in.npy"), "--output", str(tmp_path / "out.csv"))
    assert main(("predict", str(tmp_path / "run"), *words)) == 2
    assert "as its flow did not finish: resume it: everstep flow Numbers_B\n" in capsys.readouterr().err
    assert not (tmp_path / "out.csv").exists()


def test_a_server_that_is_away(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://user:geheim@127.0.0.1:9")
    with raises_problem(key="MLflow", reason="cannot be reached: .*refused") as caught:
        opened("1" * 32).__enter__()
    assert (caught.value.key, caught.value.received) == ("MLflow", "http://127.0.0.1:9")
    assert "geheim" not in str(caught.value)
