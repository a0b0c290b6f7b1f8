"""Predictions of whole runs in a fresh process: their accuracy is the one that was logged."""

import csv
import json
import os
import subprocess
import sys
from pathlib import Path

import keras
import numpy as np
import pytest

from everstep.cli.main import main
from everstep.flow import run_flow
from everstep.recipes.mnist_data import load_mnist
from everstep.testing.servers.mlflow_server import MlflowServer, client_of

pytestmark = [
    pytest.mark.backend,
    pytest.mark.full,
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
    pytest.mark.filterwarnings("ignore:.*Any type hint is inferred:UserWarning"),  # MLflow, importing its keras module
]

SOURCES = Path(__file__).parents[2] / "src"


def predicted(folder, run, data, output, **environment):
    """Runs `everstep predict` in a fresh process; returns the accuracy of the rows it writes."""
    words = ["predict", run, "--input", str(data), "--output", str(folder / output)]
    env = {**os.environ, "PYTHONPATH": str(SOURCES), **environment}
    done = subprocess.run(
        [sys.executable, "-m", "everstep", *words], cwd=folder, env=env, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout == f"{folder / output}: 10000 rows\n"
    with open(folder / output, encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    assert list(rows[0]) == ["id", "prediction", "probability"]
    return np.mean(np.array([int(row["prediction"]) for row in rows]) == load_mnist("test")[1])


def test_a_shipped_experiment(tmp_path):
    words = ("--model-dir", str(tmp_path / "run"), "trainer.train_steps=100", "trainer.validation_interval=100")
    assert main(("train", "mnist/mlp", *words)) == 0
    images, _ = load_mnist("test")
    np.savez(tmp_path / "in.npz", x=(images / np.float32(255)).astype("float32"))
    logged = json.loads((tmp_path / "run" / "run.json").read_text())["metrics"]["validation"]["accuracy"]
    found = predicted(tmp_path, str(tmp_path / "run"), tmp_path / "in.npz", "out.csv")
    print(f"mnist/mlp: logged {logged:.6f}, predicted {found:.6f}")
    assert found == pytest.approx(logged, abs=1e-6)


def test_the_sample_flow_of_a_new_project_from_disk_and_from_an_mlflow_server(tmp_path, monkeypatch):
    """The inputs are raw images, since preprocessing is in the model; the server has it as two kinds of artifact."""
    root = tmp_path / f"sample_{keras.backend.backend()}"
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    assert main(("new", str(root))) == 0
    quick = ["Mnist_B.epoch=1", "Mnist_B.samples=4000", "Mnist_B.model_name=small_model"]
    with MlflowServer(tmp_path).running() as server:
        server.wait()
        monkeypatch.setenv("MLFLOW_TRACKING_URI", server.uri)
        done = run_flow("Mnist_B", quick, root, verbose=False)
        raw = root / "data" / "raw" / "mnist.npz"
        identity = json.loads((done.directory / "spool" / "mlflow.sent.json").read_text())["remote_id"]
        found = [
            predicted(tmp_path, str(done.directory), raw, "directory.csv"),
            predicted(tmp_path, str(root / "data" / "model" / "Mnist_B.keras"), raw, "keras.csv"),
        ]
        done.directory.rename(tmp_path / "sample_away")
        (tmp_path / "sample_away" / "run.json").rename(tmp_path / "sample_away" / "hidden")
        found.append(predicted(tmp_path, identity, raw, "server.csv"))
        logged_model = logged_by_mlflow(server.uri, tmp_path / "sample_away" / "model.keras")
        found.append(predicted(tmp_path, logged_model, raw, "logged.csv"))
    print(f"Mnist_B: logged {done.metrics['test acc']:.6f}, predicted {found}")
    assert found == [pytest.approx(done.metrics["test acc"], abs=1e-6)] * 4


def logged_by_mlflow(uri, path):
    """Logs a model with MLflow's own `log_model`; returns the run's id."""
    import mlflow

    mlflow.set_tracking_uri(uri)
    with mlflow.start_run() as run:
        mlflow.keras.log_model(keras.saving.load_model(path, compile=False), name="model", pip_requirements=["keras"])
    assert client_of(uri).get_run(run.info.run_id).outputs.model_outputs
    return run.info.run_id
