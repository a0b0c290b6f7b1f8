"""`image/folder`: trains on a folder, stores its classes, resumes exactly, and refuses what does not fit."""

import json
import os
import shutil

import numpy as np
import pytest
import yaml
from PIL import Image

import everstep as es
from everstep.errors import UsageError
from everstep.testing.problems import raises_problem

pytestmark = pytest.mark.backend

SMALL = {"size": 8, "channels": 1, "global_batch_size": 8, "workers": 1, "augmentation": {"flip": "horizontal"}}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Bright and dark images, which differ from one another."""
    root, random = tmp_path_factory.mktemp("images") / "photos", np.random.default_rng(0)
    for number in range(40):
        path = root / ("bright" if number % 2 else "dark") / f"{number}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(random.integers(0, 128, (8, 8), np.uint8) + np.uint8(number % 2 * 100)).save(path)
    return root


def experiment(folder, steps=6, **task):
    params = es.get_exp_config("image/folder")
    data = {**SMALL, "input_path": str(folder)}
    model = {"filters": 4, "stages": 1}
    params.override({"task": {"train_data": data, "validation_data": {"global_batch_size": 5}, "model": model}})
    params.override({"task": task})
    intervals = {"validation_interval": 3, "checkpoint_interval": 3, "steps_per_loop": 3}
    rate = {"optimizer_config": {"learning_rate": {"cosine": {"decay_steps": 6}}}}
    params.override({"trainer": {"train_steps": steps, **intervals, **rate}})
    return params


def run(params, directory, mode="train_and_eval", **options):
    task = es.get_task(params.task)
    return es.run_experiment(task, params, directory, mode, export=False, verbose=False, **options)


def digest(directory):
    return json.loads((directory / "run.json").read_text())["digest"]


@pytest.fixture(scope="module")
def trained_run(folder, tmp_path_factory):
    directory = tmp_path_factory.mktemp("runs") / "straight"
    _, logs = run(experiment(folder), directory)
    return directory, logs


def test_it_trains_and_evaluates_what_training_leaves_out(trained_run):
    directory, logs = trained_run
    assert 0 <= logs["accuracy"] <= 1
    assert np.isfinite(logs["validation_loss"])
    record = json.loads((directory / "run.json").read_text())
    assert record["data"]["train"]["classes"] == "bright, dark"
    assert record["data"]["train"]["images"] == 40
    assert yaml.safe_load((directory / "config.yaml").read_text())["task"]["classes"] == ["bright", "dark"]


def test_a_resumed_run_ends_with_the_same_bits(trained_run, folder, tmp_path):
    run(experiment(folder, steps=3), tmp_path / "run")
    run(experiment(folder, train_data={"workers": 0}), tmp_path / "run")
    assert digest(tmp_path / "run") == digest(trained_run[0])


def test_other_images_or_classes_are_refused_on_resume(folder, tmp_path):
    moved = shutil.copytree(folder, tmp_path / "photos")
    run(experiment(moved, steps=3), tmp_path / "run", "train")
    (moved / "dark" / "0.png").write_bytes((moved / "dark" / "2.png").read_bytes())
    with raises_problem(key="data", reason="the images"):
        run(experiment(moved), tmp_path / "run", "train")
    os.rename(moved / "dark", moved / "dim")
    with pytest.raises(UsageError) as error:
        run(experiment(moved), tmp_path / "run", "train")
    assert error.value.key == "task.classes"


def test_an_evaluation_needs_no_training_data(trained_run, folder, tmp_path):
    params = experiment(folder)
    params.override({"task": {"classes": ["bright", "dark"]}})
    params.override({"task": {"train_data": {"input_path": str(tmp_path / "gone")}}})
    params.override({"task": {"validation_data": {"input_path": str(folder)}}})
    _, logs = run(params, trained_run[0], "eval")
    assert np.isfinite(logs["accuracy"])


@pytest.mark.parametrize(
    ("task", "key"),
    [
        ({"train_data": {"input_path": ""}}, "task.train_data.input_path"),
        ({"train_data": {"input_path": "/nothing"}}, "task.train_data.input_path"),
        ({"train_data": {"size": 3}, "model": {"stages": 2}}, "task.train_data.size"),
        ({"validation_data": {"size": 9}}, "task.validation_data.size"),
        ({"validation_data": {"input_path": "/nothing"}}, "task.validation_data.input_path"),
        ({"classes": ["a", "a"]}, "task.classes"),
        ({"classes": ["bright", "night"]}, "task.train_data.input_path"),
        ({"model": {"filters": 0}}, "task.model.filters"),
    ],
)
def test_what_does_not_fit_is_refused(folder, tmp_path, task, key):
    params = experiment(folder, **task)
    with pytest.raises(UsageError) as error:
        run(params, tmp_path / "run")
    assert error.value.key == key
    assert not (tmp_path / "run").exists()
