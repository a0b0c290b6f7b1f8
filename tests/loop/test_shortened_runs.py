"""Runs on some of their batches: epochs are shorter, positions exact, and the same batches stay the same."""

import keras
import numpy as np
import pytest
from tests.task.multitask.samples import Pair, pair_config

import everstep as es
from everstep.checkpoint.digests import digest
from everstep.experiment import create_trainer
from everstep.testing.problems import raises_problem
from loop.samples import TinyTask, run, tiny_params

pytestmark = pytest.mark.slow


def shortened(data=None, **trainer):
    params = tiny_params(**trainer)
    params.override({"task": data or {}})
    return params


def trained_straight_and_resumed(make_task, params):
    """Trains 12 steps; and the last 7 of them again, from what was known after 5; returns both trainers, done."""
    straight = create_trainer(params, make_task(params.task), train=True, evaluate=True)
    straight.train(5)
    state, meta = straight.state()
    straight.train(7)
    resumed = create_trainer(params, make_task(params.task), train=True, evaluate=True)
    resumed.restore(state, meta)
    resumed.train(7)
    for trainer in (straight, resumed):
        trainer.close()
    assert digest(resumed.engine.state()) == digest(straight.engine.state())
    assert resumed.epoch == straight.epoch
    return straight


def tiny(config):
    return TinyTask()


@pytest.mark.backend
def test_limited_epochs_resume_exactly():
    limits = {"train_data": {"limit_batches": 3}, "validation_data": {"limit_batches": 2}}
    trainer = trained_straight_and_resumed(tiny, shortened(limits))
    assert (trainer.epoch, trainer.train_stream.batches_per_epoch) == (4, 3)
    trainer.evaluate()
    assert trainer.evaluated_batches == 2


@pytest.mark.full
def test_epochs_are_shorter(tmp_path):
    params = shortened({"train_data": {"limit_batches": 3}}, train_steps=None, epochs=2)
    run("train", tmp_path / "run", params=params)
    with raises_problem(key="task.train_data.limit_batches", reason="3 -> 2"):
        run("train", tmp_path / "run", params=params.replace(task={"train_data": {"limit_batches": 2}}))
    assert (tmp_path / "run" / "checkpoints" / "6").is_dir()


def test_overfitting_trains_and_evaluates_on_the_same_batches():
    params = shortened(overfit_batches=2)
    trainer = trained_straight_and_resumed(tiny, params)
    x, y = (array[:16] for array in TinyTask().build_inputs(es.DataConfig(is_training=True)))  # not shuffled
    batches = [next(trainer.train_stream)[0] for _ in range(4)]
    assert all(any(np.array_equal(batch, x[i : i + 8]) for i in (0, 8)) for batch in batches)
    wanted = float(np.mean((keras.ops.convert_to_numpy(trainer.model(x)) - y) ** 2))
    assert trainer.evaluate()["validation_loss"] == pytest.approx(wanted, rel=1e-5)
    evaluator = create_trainer(params, TinyTask(), train=False, evaluate=True)
    assert evaluator.validation_stream.batches_per_epoch == 2


def test_more_batches_than_there_are(tmp_path):
    with raises_problem(key="trainer.overfit_batches", received=9, reason="but the data has 5"):
        run("train_and_eval", tmp_path / "run", params=shortened(overfit_batches=9))
    with raises_problem(key="task.validation_data.limit_batches", received=9, reason="but the data has 4"):
        run("train_and_eval", tmp_path / "run", params=shortened({"validation_data": {"limit_batches": 9}}))
    assert not (tmp_path / "run").exists()


@pytest.mark.full
def test_several_tasks_are_limited_each():
    config = pair_config(train_data=es.DataConfig(limit_batches=2), validation_data=es.DataConfig(limit_batches=1))
    config.task_routines[1].task_config.train_data.limit_batches = 4
    params = es.ExperimentConfig(task=config, trainer=tiny_params().trainer)
    trainer = trained_straight_and_resumed(Pair, params)
    assert {name: part.batches_per_epoch for name, part in trainer.train_stream.sources.items()} == {"one": 2, "two": 4}
    trainer.evaluate()
    assert trainer.evaluated_batches == 2  # one of each
    with raises_problem(key="trainer.overfit_batches", received=1, reason="cannot be used with the data of several"):
        create_trainer(params.replace(trainer={"overfit_batches": 1}), Pair(config), train=True, evaluate=True)
