"""`everstep fork`: the command of a run again, from one of its checkpoints."""

import json
import os
import sys

import keras
import numpy as np
import pytest
from tests.children import forked

import everstep
from everstep.errors import UsageError
from everstep.forks import train_fork
from everstep.run.record import read
from everstep.testing.problems import raises_problem

pytestmark = [pytest.mark.slow, pytest.mark.backend]

BACKEND = keras.backend.backend()

SCRIPT = """
import sys
import keras, numpy as np, everstep
keras.utils.set_random_seed(0)
model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(2)])
model.compile(keras.optimizers.Adam(float(sys.argv[1])), "mse")
x = np.random.default_rng(0).normal(size=(48, 4)).astype("float32")
everstep.fit(model, x, x[:, :2], batch_size=16, epochs=4, model_dir="runs/mine", verbose=0, export=[])
"""


def run(folder, *words):
    environment = {**os.environ, "KERAS_BACKEND": BACKEND}
    return forked.run([sys.executable, *words], cwd=folder, env=environment, capture_output=True, text=True)


def test_a_script_is_started_again_and_may_be_changed(tmp_path):
    (tmp_path / "train.py").write_text(SCRIPT)
    assert run(tmp_path, "train.py", "0.01").returncode == 0
    whole = read(tmp_path / "runs" / "mine")

    done = run(tmp_path, "-m", "everstep", "fork", "runs/mine", "--at", "6")
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "forked runs/mine at step 6 into runs/mine-from-6"
    assert read(tmp_path / "runs" / "mine-from-6")["digest"] == whole["digest"]

    other = ("-m", "everstep", "fork", "runs/mine", "--at", "6", "--model-dir", "runs/other")
    command = ("--", sys.executable, "train.py", "0.1")
    refused = run(tmp_path, *other, *command)
    assert refused.returncode == 1
    assert "optimizer.learning_rate: 0.01 -> 0.1" in refused.stderr
    assert not (tmp_path / "runs" / "other").exists()

    assert run(tmp_path, *other, "--allow-change", "optimizer.learning_rate", *command).returncode == 0
    found = read(tmp_path / "runs" / "other")
    assert found["states"]["6"] == whole["states"]["6"]
    assert found["digest"] != whole["digest"]
    assert read(tmp_path / "runs" / "mine") == whole

    tree = json.loads(run(tmp_path, "-m", "everstep", "runs", "tree", "--json").stdout)
    assert [(row["directory"], (row["forked_from"] or {}).get("step")) for row in tree] == [
        ("runs/mine", None),
        ("runs/mine-from-6", 6),
        ("runs/other", 6),
    ]


@pytest.mark.full
def test_an_experiment_gets_other_values(tmp_path):
    settings = ("trainer.train_steps=8", "trainer.checkpoint_interval=4", "trainer.steps_per_loop=4")
    train = ("-m", "everstep", "train", "mnist/local", *settings, "--no-export", "--model-dir", "runs/a")
    assert run(tmp_path, *train).returncode == 0
    assert run(tmp_path, "-m", "everstep", "fork", "runs/a", "--at", "4").returncode == 0
    assert read(tmp_path / "runs" / "a-from-4")["digest"] == read(tmp_path / "runs" / "a")["digest"]

    changed = ("trainer.train_steps=12", "task.train_data.global_batch_size=16")
    done = run(tmp_path, "-m", "everstep", "fork", "runs/a", "--at", "4", *changed)
    assert done.returncode == 0, done.stderr
    found = read(tmp_path / "runs" / "a-from-4-2")
    assert (found["step"], found["attempts"][0]["from_step"]) == (12, 4)
    keys = [change["key"] for change in found["attempts"][0]["changes"]]
    assert keys == ["task.train_data.global_batch_size", "trainer.train_steps"]


def test_values_for_a_script_are_refused_with_the_way_to_change_them(tmp_path):
    program = {"script": "train.py", "arguments": [], "directory": "."}
    (tmp_path / "run.json").write_text(json.dumps({"id": "a", "backend": BACKEND, "program": program}))
    (tmp_path / "config.yaml").write_text("task: {}\n")
    done = run(tmp_path, "-m", "everstep", "fork", ".", "--at", "6", "lr=0.1")
    assert done.returncode == 2
    assert "is a run of train.py, which decides its values" in done.stderr
    assert "-- python train.py" in done.stderr


@pytest.fixture
def parent(tmp_path, monkeypatch):
    """A run whose record says that a script in the working directory has started it."""
    monkeypatch.chdir(tmp_path)
    x = np.zeros((8, 4), "float32")
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    everstep.fit(model, x, x[:, :1], epochs=1, model_dir="runs/mine", verbose=0, export=[])
    (tmp_path / "train.py").write_text("raise SystemExit(1)\n")
    return tmp_path / "runs" / "mine"


@pytest.mark.parametrize(
    "program",
    [
        {"script": "train.py", "module": "timeit", "arguments": ["open('hacked', 'w')"]},
        {"script": "../outside.py", "module": None, "arguments": []},
        {"script": "train.py", "module": None, "arguments": ["--key", "***"]},
    ],
)
def test_a_record_from_elsewhere_does_not_choose_what_is_started(parent, program):
    (parent.parents[2] / "outside.py").write_text("open('hacked', 'w')\n")
    path = parent / "run.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"program": {**program, "directory": ".", "run": 1}}))
    with pytest.raises(UsageError):
        train_fork(parent, at=1)
    assert not list(parent.parents[1].glob("hacked"))
    assert [path.name for path in parent.parent.iterdir()] == ["mine"]


def test_a_command_that_trains_nothing_there_is_an_error_and_leaves_nothing(parent):
    with raises_problem(key="COMMAND", reason="has trained nothing in the directory of the fork"):
        train_fork(parent, at=1, command=[sys.executable, "-c", "pass"])
    assert [path.name for path in parent.parent.iterdir()] == ["mine"]
