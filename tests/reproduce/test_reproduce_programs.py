"""Runs of a user's script, repeated by `everstep reproduce`: by real processes."""

import json
import os
import shutil
import subprocess
import sys

import keras
import pytest
from tests.reproduce.conftest import Place

from everstep.reproduce.repetition import Repetition, run_repetition

pytestmark = [pytest.mark.backend, pytest.mark.timeout(900)]

SCRIPT = """
import sys

import keras
import numpy as np

import everstep

epochs = int(sys.argv[sys.argv.index("--epochs") + 1])
x = np.random.default_rng(0).normal(size=(64, 2)).astype("float32")
keras.utils.set_random_seed(1)


def train(model_dir, **settings):
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    everstep.fit(model, x, x.sum(axis=1), epochs=epochs, verbose=0, model_dir=model_dir, **settings)


train("runs/pretrained")
train("runs/mine")
"""


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    folder = tmp_path_factory.mktemp("script")
    (folder / "train.py").write_text(SCRIPT)
    place = Script(folder)
    assert place.python("train.py", "--epochs", "2").returncode == 0
    return folder


@pytest.fixture
def place(trained, tmp_path):
    shutil.copytree(trained, tmp_path / "place")
    return Script(tmp_path / "place")


class Script(Place):
    """A folder with a script and its runs."""

    def python(self, *words):
        environment = {**os.environ, "KERAS_BACKEND": keras.backend.backend()}
        command = [sys.executable, *words]
        return subprocess.run(command, cwd=self.folder, env=environment, capture_output=True, text=True, timeout=600)

    def repeat(self, *words):
        """Returns exit code and verdict."""
        done = self.everstep("reproduce", "runs/mine", "--json", *words)
        return done.returncode, json.loads(done.stdout) if done.stdout else done.stderr

    def files(self):
        return {path: path.read_bytes() for path in (self.folder / "runs").rglob("*") if path.is_file()}


def test_the_second_run_of_a_script_is_repeated(place):
    program = place.record("runs/mine")["program"]
    assert (program["script"], program["arguments"], program["run"]) == ("train.py", ["--epochs", "2"], 2)
    before = place.files()
    code, verdict = place.repeat()
    assert (code, verdict["verdict"]) == (0, "identical"), verdict
    assert verdict["weights_compared_at"] == 4
    assert verdict["again"] is None, "its directory is removed"
    assert place.files() == before, "the runs of the script are only read"


JOB = """
import keras
import numpy as np

from everstep.training import Training


def build():
    return keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])


x = np.random.default_rng(0).normal(size=(64, 2)).astype("float32")
job = Training(build_model_func=build, job_dir="runs/mine", artifacts_dir="runs/artifacts", optimizer="sgd", loss="mse")
job.run_train((x, x.sum(axis=1)), epochs=2)
job.save_pipeline_metadata("runs/ui.json", "runs/metrics.json")
"""


@pytest.mark.full
def test_a_training_is_repeated(tmp_path):
    (tmp_path / "job.py").write_text(JOB)
    place = Script(tmp_path)
    assert place.python("job.py").returncode == 0
    before = place.files()
    code, verdict = place.repeat()
    assert (code, verdict["verdict"]) == (0, "identical"), verdict
    assert place.files() == before, "job and artifacts are only read"
    path = tmp_path / "runs" / "mine" / "run.json"
    record = json.loads(path.read_text())
    in_notebook = {**record["program"], "script": None, "reason": "it was started in a notebook"}
    path.write_text(json.dumps({**record, "program": in_notebook}))
    code, error = place.repeat()
    assert code == 2
    assert "not in its record: it was started in a notebook" in error


def test_no_path_is_printed_that_is_removed(tmp_path, capfd):
    program = f"import sys; print('loss 0.5', 'report {tmp_path}/spare/again/report.html', sep='\\n', file=sys.stderr)"
    repetition = Repetition([program], tmp_path, tmp_path / "spare" / "again", {}, ("-c",))
    run_repetition(repetition, show=True, removed=tmp_path / "spare")
    assert capfd.readouterr().err == "loss 0.5\n"
    run_repetition(repetition, show=True)
    assert "report.html" in capfd.readouterr().err


def test_other_code_is_the_cause(place):
    place.rewrite("train.py", '"sgd"', '"adam"')
    code, verdict = place.repeat("--steps", "2")
    assert code == 1
    assert verdict["cause"]["kind"] in ("config", "code")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"script": "gone.py"}, "was trained by 'gone.py', which is not in"),
        ({"script": "../train.py"}, "is outside the folder"),
        ({"arguments": ["--token", "***"]}, "an argument of 'train.py' was a secret"),
        ({"module": "os"}, "is recorded as the module 'os' and as another file"),
        ({"script": None, "reason": "it was started in a notebook"}, "not in its record: it was started in a notebook"),
    ],
)
def test_what_cannot_be_repeated_is_said(place, change, message):
    path = place.folder / "runs" / "mine" / "run.json"
    record = json.loads(path.read_text())
    path.write_text(json.dumps({**record, "program": {**record["program"], **change}}))
    code, error = place.repeat()
    assert code == 2
    assert message in error
