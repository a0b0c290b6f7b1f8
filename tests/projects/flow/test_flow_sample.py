"""The sample at full size: created, installed, trained from another folder, used for predictions and in a notebook."""

import csv
import json
import resource
import sqlite3
import time

import keras
import nbclient
import nbformat
import numpy as np
import pytest
from installed import SOURCE, Environment

pytestmark = [pytest.mark.full, pytest.mark.backend, pytest.mark.timeout(3000)]

CPU_SECONDS = {"tensorflow": 2 * 120, "jax": 2 * 180, "torch": 2 * 120}  # two cores


@pytest.fixture(scope="module")
def environment(tmp_path_factory):
    return Environment(tmp_path_factory.mktemp("environment") / "venv", backend=keras.backend.backend())


@pytest.fixture(scope="module")
def demo(environment, tmp_path_factory):
    """The project, new and installed."""
    folder = tmp_path_factory.mktemp("work")
    environment.run(folder, "-m", "everstep", "new", "demo")
    environment.install(folder / "demo")
    return folder / "demo"


@pytest.fixture(scope="module")
def training_output(environment, demo, tmp_path_factory):
    """The output of training, how long it took, and the folder it was called in."""
    elsewhere = tmp_path_factory.mktemp("elsewhere")
    before, start = resource.getrusage(resource.RUSAGE_CHILDREN), time.monotonic()
    done = environment.run(elsewhere, demo / "train.py", "--task", "Mnist_B")
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    seconds = time.monotonic() - start
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return {"done": done, "seconds": seconds, "cpu": cpu, "elsewhere": elsewhere}


def run_of(demo):
    (directory,) = (demo / "runs").iterdir()
    return directory, json.loads((directory / "run.json").read_text())


def test_it_trains_in_time_to_its_accuracy(demo, training_output, capsys):
    directory, record = run_of(demo)
    accuracy = record["metrics"]["test"]["test acc"]
    with capsys.disabled():
        times = f"{training_output['seconds']:.0f} s ({training_output['cpu']:.0f} s CPU)"
        print(f"\n{keras.backend.backend()}: test acc {accuracy:.4f}, {times}")
    assert accuracy >= 0.985
    assert training_output["cpu"] <= CPU_SECONDS[keras.backend.backend()]
    assert "Mnist_B <- Mnist_A <- FlowTask" in training_output["done"].stderr
    assert list(training_output["elsewhere"].iterdir()) == []
    made = (
        "feature/mnist.npz",
        "intermediate/mnist_statistics.json",
        "model/Mnist_B.keras",
        "report/Mnist_B-training.png",
    )
    assert all((demo / "data" / name).is_file() for name in made)
    assert record["data"]["mnist.raw"]["sha256"]
    with sqlite3.connect(demo / "mlflow.db") as database:
        ((experiment,),) = database.execute("select name from experiments where name != 'Default'")
        epochs = database.execute("select step from metrics where key = 'val_accuracy'").fetchall()
        params = dict(database.execute("select key, value from params").fetchall())
    assert (experiment, sorted(epochs)) == ("mnist_exp", [(step,) for step in range(5)])
    assert (params["data"], params["epoch"], params["model name"]) == ("data/raw/mnist.npz", "5", "base_model")
    assert params["batch_size"] == "128"


def test_predictions_have_the_accuracy_that_was_logged(environment, demo, training_output, tmp_path):
    directory, record = run_of(demo)
    raw = str(demo / "data" / "raw" / "mnist.npz")
    environment.run(tmp_path, demo / "inference.py", "--input", raw, "--output", "task.csv")
    words = ("--input", raw, "--output", "run.csv")
    environment.run(tmp_path, "-m", "everstep", "predict", directory, *words)
    sent = json.loads((directory / "spool" / "mlflow.sent.json").read_text())["remote_id"]
    environment.run(demo, "-m", "everstep", "predict", sent, "--input", raw, "--output", tmp_path / "id.parquet")
    with np.load(raw) as arrays:
        labels = arrays["y_test"]
    for name in ("task.csv", "run.csv"):
        with open(tmp_path / name, newline="", encoding="utf-8") as file:
            rows = list(csv.DictReader(file))
        assert list(rows[0]) == ["id", "prediction", "probability"]
        right = np.mean([int(row["prediction"]) for row in rows] == labels)
        assert right == pytest.approx(record["metrics"]["test"]["test acc"], abs=1e-6)
    missing = environment.run(tmp_path, demo / "inference.py", "--task", "Mnist_A", code=2)
    assert "python train.py --task Mnist_A" in missing.stderr


def test_only_its_own_name_is_installed(environment, demo, tmp_path):
    names = ("config", "data", "feature", "model", "notebook", "util", "train", "inference")
    look = f"import importlib.util as u, demo.train; print([n for n in {names} if u.find_spec(n)], demo.__file__)"
    assert environment.run(tmp_path, "-c", look).stdout.split() == ["[]", str(demo / "__init__.py")]


def test_its_own_tests_pass_and_leave_everything_as_it_is(environment, demo, training_output):
    model = (demo / "data" / "model" / "Mnist_B.keras").read_bytes()
    done = environment.run(demo, "-m", "pytest", "-q", "-p", "no:cacheprovider")
    assert "4 passed" in done.stdout
    assert (demo / "data" / "model" / "Mnist_B.keras").read_bytes() == model
    assert len(list((demo / "runs").iterdir())) == 1


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_its_notebook_runs(environment, demo, monkeypatch):
    """The kernel is this environment's, so the project is found by where the notebook is, not by its installation."""
    for name, value in environment.variables.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("PYTHONPATH", str(SOURCE))
    notebook = nbformat.read(demo / "notebook" / "flow.ipynb", as_version=4)
    folder = {"metadata": {"path": str(demo / "notebook")}}
    nbclient.NotebookClient(notebook, timeout=1200, resources=folder).execute()
    shapes, digits, run = (cell.outputs for cell in notebook.cells[2:])
    assert "(60000, 28, 28, 1)" in shapes[-1]["data"]["text/plain"]
    assert "image/png" in digits[-1]["data"]
    assert [output for output in run if "image/png" in output.get("data", {})]
    assert "test acc" in run[-1]["data"]["text/plain"]
