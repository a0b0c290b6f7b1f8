"""The shipped experiment `multitask/digits`, shortened: from the configuration to the exported model."""

import json

import numpy as np
import pytest

import everstep as es
from everstep.task.multitask.task import MultiTask

pytestmark = [
    pytest.mark.backend,
    pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning"),  # Keras, saving a model
]


def short(**task):
    config = es.get_exp_config("multitask/digits")
    data = {"num_samples": 1000, "train_data": {"global_batch_size": 32}}
    routine = {"task_config": data, "eval_steps": 1}
    config.override({"task": {"task_routines": [routine, routine], "model": {"units": 8}, **task}})
    every = {"steps_per_loop": 10, "validation_interval": 20, "checkpoint_interval": 10}
    config.override({"trainer": {"train_steps": 20, **every}})
    return config


def run(directory, config, **kwargs):
    task = es.get_task(config.task)
    return es.run_experiment(task, config, directory, verbose=False, **kwargs)


def test_trains_evaluates_and_exports(tmp_path):
    config = short()
    assert isinstance(es.get_task(config.task), MultiTask)
    model, logs = run(tmp_path, config)
    metrics = {f"{task}/{name}" for task in ("digit", "parity") for name in ("validation_loss", "accuracy")}
    assert metrics <= set(logs)
    assert logs["validation_loss"] == pytest.approx(sum(logs[f"{t}/validation_loss"] for t in ("digit", "parity")))
    history = (tmp_path / "history.csv").read_text()
    assert "parity/training_loss" in history
    assert (tmp_path / "export" / "model.keras").exists()
    outputs = model(np.zeros((2, 28, 28), "float32"))
    assert {name: tuple(value.shape) for name, value in outputs.items()} == {"digit": (2, 10), "parity": (2, 2)}


@pytest.mark.full
@pytest.mark.parametrize("mode", ["interleaving", "joint"])
def test_an_interrupted_run_ends_in_the_same_bits(tmp_path, mode):
    run(tmp_path / "whole", short(mode=mode), export=False)

    def cut(logs):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(tmp_path / "cut", short(mode=mode), export=False, train_actions=[cut])
    run(tmp_path / "cut", short(mode=mode), export=False)
    digests = [json.loads((tmp_path / name / "run.json").read_text())["digest"] for name in ("whole", "cut")]
    assert digests[0] == digests[1]
