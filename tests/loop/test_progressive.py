"""Training in stages: what goes on, what begins anew, and the same bits after a kill in any stage."""

import json

import keras
import numpy as np
import pytest

from everstep.checkpoint.orbax import OrbaxCheckpointer
from everstep.experiment import create_trainer
from everstep.loop.progressive import ProgressivePolicy

from .samples import TinyTask, run, tiny_params

pytestmark = pytest.mark.backend


class Growing(ProgressivePolicy, TinyTask):
    """Three stages of 5, 4 and 100 steps; the model's last layer is a new one in the second."""

    def __init__(self):
        super().__init__()
        self.built = []

    def num_stages(self):
        return 3

    def num_steps(self, stage):
        return (5, 4, 100)[stage]

    def get_model(self, stage, old_model=None):
        self.built.append((stage, old_model is not None))
        width = 6 if stage == 0 else 9
        layers = [keras.layers.Dense(5, "tanh"), keras.layers.Dropout(0.1 * stage), keras.layers.Dense(width, "tanh")]
        return keras.Sequential([keras.Input((4,)), *layers, keras.layers.Dense(1)])


def test_stages_are_functions_of_the_step():
    task = Growing()
    assert [task.stage_at(step) for step in (0, 4, 5, 8, 9, 500)] == [0, 0, 1, 1, 2, 2]


def test_variables_that_still_fit_go_on(tmp_path, caplog):
    """Loops of 4 steps: the second stage begins at step 8, when the loop with its first step is over."""
    task = Growing()
    run("train_and_eval", tmp_path, task)
    assert task.built == [(0, False), (1, True)]
    assert "step 8: stage 2 of 3" in caplog.text
    state, meta = OrbaxCheckpointer(tmp_path / "checkpoints").restore()
    assert (meta["stage"], meta["step"]) == (1, 12)
    assert state["optimizer/iteration"] == 12, "the optimizer's steps go on"
    before, _ = OrbaxCheckpointer(tmp_path / "checkpoints").restore(8)
    assert before["model/dense_1/kernel"].shape == (5, 6)
    assert state["model/dense_1/kernel"].shape == (5, 9)
    assert not np.array_equal(before["model/dense/kernel"], state["model/dense/kernel"])


def digest(directory):
    return json.loads((directory / "run.json").read_text())["digest"]


@pytest.mark.parametrize("stop", [4, 8, 12])
def test_interrupted_in_any_stage_ends_in_the_same_bits(tmp_path, stop):
    """Killed after the loop that ends at the step; the checkpoint before it may be one of another stage."""
    params = tiny_params(train_steps=16, checkpoint_interval=4)
    run("train", tmp_path / "whole", Growing(), params)
    task = Growing()
    trainer = create_trainer(params, task, train=True, evaluate=False)

    def cut(logs):
        if trainer.global_step >= stop:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run("train", tmp_path / "cut", task, params, trainer=trainer, train_actions=[cut])
    run("train", tmp_path / "cut", Growing(), params)
    assert digest(tmp_path / "cut") == digest(tmp_path / "whole")
