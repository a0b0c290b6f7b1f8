"""`fork`: a new run that begins with the exact state of another one."""

import json
import shutil

import keras
import numpy as np
import pytest

import everstep
from everstep.errors import UsageError
from everstep.run.record import read
from everstep.testing.problems import raises_problem

pytestmark = [pytest.mark.slow, pytest.mark.backend]

X = np.random.default_rng(0).normal(size=(48, 4)).astype("float32")
STEPS = 3  # of an epoch


def train(directory, epochs=4, rate=0.01, width=8, frozen=False, **options):
    keras.utils.set_random_seed(0)
    model = keras.Sequential(
        [
            keras.Input((4,)),
            keras.layers.Dense(width, trainable=not frozen),
            keras.layers.Dropout(0.3, seed=1),
            keras.layers.Dense(2),
        ]
    )
    model.compile(keras.optimizers.Adam(rate), "mse")
    call = {"batch_size": 16, "epochs": epochs, "verbose": 0, "export": []}
    everstep.fit(model, X, X[:, :2], model_dir=directory, **call, **options)
    return read(directory)


@pytest.fixture(scope="module")
def parent(tmp_path_factory):
    directory = tmp_path_factory.mktemp("runs") / "parent"
    train(directory)
    return directory


def contents(directory):
    return {path: path.read_bytes() for path in sorted(directory.rglob("*")) if path.is_file()}


def test_unchanged_it_ends_with_the_bits_of_its_parent(parent, tmp_path):
    before = contents(parent)
    forked = everstep.fork(parent, at=2 * STEPS, model_dir=tmp_path / "fork")
    assert read(forked)["states"] == {step: read(parent)["states"][step] for step in ("3", "6")}
    found, whole = train(forked), read(parent)
    assert contents(parent) == before
    assert (found["digest"], found["weights_digest"]) == (whole["digest"], whole["weights_digest"])
    assert found["states"] == whole["states"]
    assert [attempt["from_step"] for attempt in found["attempts"]] == [6]
    assert found["id"] != whole["id"]
    assert found["forked_from"] == {"run": whole["id"], "directory": str(parent), "step": 6}


def test_the_history_until_the_step_is_that_of_the_parent(parent, tmp_path):
    forked = everstep.fork(parent, at=2 * STEPS, model_dir=tmp_path / "fork")
    train(forked, rate=0.1, allow_change="optimizer.learning_rate")
    rows, own = ((place / "history.csv").read_text().splitlines() for place in (parent, forked))
    assert own[:3] == rows[:3]
    assert [row.split(",")[:2] for row in own[3:]] != [row.split(",")[:2] for row in rows[3:]]
    assert len(own) == len(rows)


def test_it_is_checked_like_a_resumed_run(parent, tmp_path):
    forked = everstep.fork(parent, at=STEPS, model_dir=tmp_path / "fork")
    with raises_problem(key="optimizer.learning_rate"):
        train(forked, rate=0.1)
    assert train(forked)["digest"] == read(parent)["digest"]  # nothing was trained before


def test_a_fork_can_be_forked_and_resumed(parent, tmp_path):
    first = everstep.fork(parent, at=STEPS, model_dir=tmp_path / "first")
    train(first, epochs=3)
    second = everstep.fork(first, at=3 * STEPS, model_dir=tmp_path / "second")
    train(second, epochs=3)  # nothing is left to train
    assert train(second)["states"] == read(parent)["states"]
    assert read(second)["forked_from"]["run"] == read(first)["id"]


def test_frozen_weights_come_along(tmp_path):
    """They are in a folder of their own, which checkpoints refer to."""
    options = {"width": 6000, "frozen": True}
    whole = train(tmp_path / "whole", **options)
    assert (tmp_path / "whole" / "base").is_dir()
    forked = everstep.fork(tmp_path / "whole", at=STEPS, model_dir=tmp_path / "fork")
    shutil.rmtree(tmp_path / "whole")
    assert train(forked, **options)["digest"] == whole["digest"]


def test_a_step_without_a_checkpoint_is_refused_with_those_there_are(parent, tmp_path):
    with pytest.raises(UsageError) as caught:
        everstep.fork(parent, at=7, model_dir=tmp_path / "fork")
    [problem] = caught.value.problems
    assert (problem.received, problem.remedy) == (7, "it has 3, 6, 9, 12")
    assert not (tmp_path / "fork").exists()


def test_a_damaged_checkpoint_is_refused(parent, tmp_path):
    copy = shutil.copytree(parent, tmp_path / "copy")
    data = copy / "checkpoints" / "6" / "parts" / "0" / "data"
    data.write_bytes(data.read_bytes()[:-1] + b"?")
    with raises_problem(reason="its checkpoint of step 6 is damaged: parts/0/data has other", remedy="3, 9, 12"):
        everstep.fork(copy, at=6, model_dir=tmp_path / "fork")
    assert not (tmp_path / "fork").exists()


def test_a_parent_in_a_folder_called_checkpoints_keeps_its_history(parent, tmp_path):
    """Only files of a checkpoint are shared by name: others are written to."""
    copy = shutil.copytree(parent, tmp_path / "checkpoints" / "parent")
    before = contents(copy)
    train(everstep.fork(copy, at=3, model_dir=tmp_path / "fork"), rate=0.1, allow_change="optimizer.learning_rate")
    assert contents(copy) == before


def test_a_url_is_refused(parent):
    with raises_problem(key="model_dir", received="s3://bucket/fork", reason="is a URL"):
        everstep.fork(parent, at=6, model_dir="s3://bucket/fork")


def test_a_directory_with_anything_in_it_is_refused(parent, tmp_path):
    (tmp_path / "notes.txt").write_text("mine")
    with raises_problem(key="model_dir", received=str(tmp_path), reason="is not empty"):
        everstep.fork(parent, at=6, model_dir=tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["notes.txt"]
    (tmp_path / "empty").mkdir()
    assert json.loads((everstep.fork(parent, 6, tmp_path / "empty") / "run.json").read_text())["step"] == 6


def test_what_is_no_run_is_refused(tmp_path):
    with pytest.raises(UsageError, match="is not a run directory"):
        everstep.fork(tmp_path, at=1, model_dir=tmp_path / "fork")
