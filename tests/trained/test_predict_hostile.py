"""Harmful model files are refused with a one-line error, before anything in them is run or read."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

HERE = Path(__file__).parent
SOURCES = HERE.parents[1] / "src"
CHEAP = ("keras_lambda", "keras_saved_model_layer", "keras_vocabulary_of_a_file", "keras_name_that_climbs")


@pytest.fixture
def child(monkeypatch):
    """The module that writes the files; most of them come from `tests/task/hostile_artefacts.py`."""
    monkeypatch.syspath_prepend(HERE.parent / "task")
    from tests.trained import predict_hostile_child

    return predict_hostile_child


def test_keras_files_are_refused_and_the_secret_is_not_read(child, tmp_path):
    canary, secret = tmp_path / "canary", tmp_path / "outside" / "secret"
    secret.parent.mkdir()
    secret.write_text("one\t1\n")
    maker = child.hostile_artefacts.Maker(tmp_path / "files", canary, secret)
    names = {name: child.hostile_artefacts.path_of(maker.root, name) for name in CHEAP}
    paths = {name: getattr(maker, name)(path) for name, path in names.items()} | child.made_of_keras(maker)
    found = {name: child.was_read(path, secret) for name, path in paths.items()}
    assert {name: each for name, each in found.items() if each != ("refused", False)} == {}
    assert not canary.exists()
    assert child.outcome_of(maker.honest / "model.keras").startswith("predicted")


@pytest.fixture(scope="module")
def report(tmp_path_factory):
    folder = tmp_path_factory.mktemp("hostile")
    (folder / "outside").mkdir()
    names = [folder / "files", folder / "canary", folder / "outside" / "secret"]
    path = os.pathsep.join([str(SOURCES), str(HERE.parent / "task")])
    done = subprocess.run(
        [sys.executable, "-B", str(HERE / "predict_hostile_child.py"), *map(str, names)],
        cwd=folder,
        env={**os.environ, "KERAS_BACKEND": "jax", "PYTHONPATH": path},
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.full
def test_every_file_is_refused_and_the_secret_is_not_read(report):
    wrong = {name: found for name, found in report["found"].items() if found != ["refused", False]}
    assert not wrong
    assert len(report["found"]) >= 20


@pytest.mark.full
def test_no_code_was_run(report):
    assert not report["canary"]


@pytest.mark.full
def test_honest_models_predict(report):
    assert [text.split()[0] for text in report["good"]] == ["predicted", "predicted"]


@pytest.mark.full
def test_refusing_takes_little_memory(report):
    assert report["grown"] < 200 << 20


@pytest.mark.full
def test_reading_and_running_would_have_been_noticed(report):
    assert report["witnesses"] == {"read": True, "run": True}
