"""Without the folder of a companion the core trains, and says what is missing when it is asked for."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from test_structure import COMPANIONS

pytestmark = pytest.mark.slow


PACKAGE = Path(__file__).parent.parent / "src" / "everstep"

EXPERIMENT = """
import dataclasses

import numpy as np

import everstep


@dataclasses.dataclass
class LineConfig(everstep.TaskConfig):
    units: int = 1


@everstep.register_task(LineConfig)
class Line(everstep.Task):
    def build_model(self):
        import keras

        return keras.Sequential([keras.Input((4,)), keras.layers.Dense(self.task_config.units)])

    def build_inputs(self, params, input_context=None):
        x = np.random.default_rng(0).normal(size=(64, 4)).astype("float32")
        return x, x.sum(axis=1, keepdims=True)

    def build_losses(self, labels, model_outputs, aux_losses=None):
        import keras

        return keras.ops.mean((labels - model_outputs) ** 2)


@everstep.register_experiment("line")
def line():
    params = everstep.ExperimentConfig(task=LineConfig())
    params.override({"trainer": {"train_steps": 4, "steps_per_loop": 2, "checkpoint_interval": 2}})
    return params
"""

PROGRAM = """
import contextlib, importlib, io, json, sys

import everstep
from everstep.cli.main import main


def command(*words):
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = main(words)
    return code, out.getvalue() + err.getvalue()


def name(path):
    module, _, last = path.rpartition(".")
    try:
        getattr(importlib.import_module(module), last)
        return ""
    except everstep.UsageError as error:
        return str(error)


trained = command("train", "line", "--import", "line", "--model-dir", "run")[0]
import keras, numpy as np

model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
model.compile("sgd", "mse")
x = np.ones((32, 4), "float32")
everstep.fit(model, x, x[:, :1], epochs=1, batch_size=16, verbose=0)
print(json.dumps({
    "trained": trained,
    "steps": json.load(open("run/run.json"))["step"],
    "help": command("--help"),
    "listed": command("runs", "list", "."),
    "commands": {words: command(*words.split()) for words in COMMANDS},
    "names": {path: name(path) for path in NAMES},
}))
"""

# For each companion: commands, and names that users import.
ASKED = {
    "projects": (
        ["flow A", "run baseline", "new demo", "submit baseline"],
        ["everstep.Training", "everstep.components.Orchestrator", "everstep.flow.FlowTask", "everstep.catalog.Catalog"],
    ),
    "model_garden": (["train line --import line --gin-params A.b=1"], []),
    "sweeps": (["sweep line task.units=1,2"], ["everstep.sweep"]),
    "tuner": (["tune batch-size line"], []),
    "submit": (["submit baseline", "sweep line --import line task.units=1,2 --on slurm"], []),
    "recipes": (["train mnist/local", "bct compare"], ["everstep.bct.BCTTask"]),
}


def run_without(companions: set[str], folder: Path) -> dict[str, Any]:
    """Trains without the folders of these companions, and asks for them; returns what was said."""
    (folder / "everstep").mkdir()
    for path in PACKAGE.iterdir():
        if path.name not in companions and path.name != "__pycache__":
            (folder / "everstep" / path.name).symlink_to(path)
    (folder / "line.py").write_text(EXPERIMENT)
    asked = [ASKED[name] for name in sorted(companions)]
    commands = [words for group, _ in asked for words in group]
    names = [path for _, group in asked for path in group]
    (folder / "program.py").write_text(f"COMMANDS, NAMES = {commands!r}, {names!r}\n{PROGRAM}")
    done = subprocess.run(
        [sys.executable, "program.py"],
        cwd=folder,
        env={**os.environ, "KERAS_BACKEND": "jax", "PYTHONPATH": str(folder)},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    return found


def require_trained(found: dict[str, Any]) -> None:
    assert (found["trained"], found["steps"]) == (0, 4)
    assert found["help"][0] == found["listed"][0] == 0
    assert "skipped" not in found["help"][1]


def test_without_any_companion_the_core_trains_and_says_what_is_missing(tmp_path):
    found = run_without(COMPANIONS, tmp_path)
    require_trained(found)
    assert not {"sweep", "flow", "submit", "bct"} & set(found["help"][1].split())
    for words, (code, text) in found["commands"].items():
        assert (code, text.count("\n")) == (2, 1), words
        assert "everstep: error: " in text, words
        assert "which this installation is without" in text or "this installation is without" in text, words
    for path, text in found["names"].items():
        assert path in text, path
        assert "which this installation is without" in text, path


@pytest.mark.full
@pytest.mark.parametrize("companion", sorted(COMPANIONS))
def test_without_one_companion_the_others_work(tmp_path, companion):
    found = run_without({companion}, tmp_path)
    require_trained(found)
    others = {"projects": "flow", "sweeps": "sweep", "tuner": "tune", "submit": "submit", "recipes": "bct"}
    assert {name for name, command in others.items() if f" {command} " in found["help"][1]} == set(others) - {companion}
    for words, (code, text) in found["commands"].items():
        assert code == 2, words
        assert f"everstep.{companion}" in text, words
    assert all(f"everstep.{companion}" in text for text in found["names"].values())
