"""Copies of the model for runs that know nothing of stages: when they are written, and what is in them."""

import numpy as np
import pytest
from tests.loop.samples import TinyTask, run, tiny_params

import everstep as es
from everstep.checkpoint.checkpointer import SaveError
from everstep.checkpoint.orbax import OrbaxCheckpointer
from everstep.experiment import create_trainer
from everstep.loop.actions.weights import ExportedCopies, WeightsFolder, maybe_create_exported_copies
from everstep.loop.progressive import ProgressivePolicy
from everstep.testing import models
from everstep.testing.problems import raises_problem

pytestmark = pytest.mark.backend


class Stages(ProgressivePolicy, TinyTask):
    """Two stages of one model; the second begins at step 12."""

    spoiled = False

    def num_stages(self):
        return 2

    def num_steps(self, stage):
        return (12, 100)[stage]

    def get_model(self, stage, old_model=None):
        return models.mlp()

    def get_train_dataset(self, stage):
        x, y = models.samples(models.plain_mlp(), 44)
        return np.where(self.spoiled and np.arange(44)[:, None] == 3, np.nan, x).astype("float32"), y


class Started(TinyTask):
    """The same model, from initial weights that its section names."""

    def __init__(self, config):
        es.Task.__init__(self, config)


def params(**trainer):
    """Returns an experiment in loops of 4 steps, whose copies are made by the tests."""
    tiny = tiny_params()
    section = {**tiny.trainer.as_dict(), "export_checkpoint": False, "checkpoint_interval": 4, **trainer}
    return es.ExperimentConfig(task=tiny.task, trainer=es.ProgressiveTrainerConfig(section))


def copied(directory, config, mode="train", task=None, before=(), **kwargs):
    """Runs with copies as the last of all actions; returns the checkpoints in their folder."""
    task = task or Stages()
    trainer = create_trainer(config, task, train=True, evaluate="eval" in mode)
    copies = ExportedCopies(trainer, directory, config.trainer)
    actions = {"train_actions": [*before, copies], "eval_actions": [copies]}
    run(mode, directory, task, config, trainer=trainer, **actions, **kwargs)
    return OrbaxCheckpointer(directory / "exported_ckpts")


@pytest.mark.parametrize(
    ("fields", "steps"),
    [
        ({"export_only_final_stage_ckpt": False}, [12, 20, 24]),
        ({}, [20, 24]),
        ({"export_only_final_stage_ckpt": False, "export_max_to_keep": 1}, [24]),
        ({"export_checkpoint_interval": 0}, [24]),
    ],
    ids=["every stage", "the last stage", "the newest", "the end"],
)
def test_written_at_the_first_loop_at_or_after_a_multiple(tmp_path, fields, steps):
    config = params(train_steps=24, **{"export_checkpoint_interval": 10, **fields})
    copies = copied(tmp_path, config)
    assert copies.steps() == steps
    state, meta = copies.restore()
    assert (meta["step"], meta["stage"]) == (24, 1)
    whole, _ = OrbaxCheckpointer(tmp_path / "checkpoints").restore()
    assert sorted(state) == sorted(key for key in whole if key.startswith("model/"))
    assert all(np.array_equal(state[key], whole[key]) for key in state)


def test_a_resumed_run_writes_the_same(tmp_path):
    """Stopped at step 12 and saved there: the multiple of 10 is behind it, and does not come again at step 16."""
    config = {"export_checkpoint_interval": 10, "export_only_final_stage_ckpt": False}
    copied(tmp_path, params(train_steps=12, **config))
    assert copied(tmp_path, params(train_steps=20, **config)).steps() == [12, 20]


def test_nan_is_not_kept(tmp_path):
    task = Stages()
    task.spoiled = True
    config = params(train_steps=12, recovery_max_trials=9, export_only_final_stage_ckpt=False)
    copies = copied(tmp_path, config, task=task)
    assert copies.steps() == [4, 8, 12]
    for step in copies.steps():
        assert all(np.isfinite(value).all() for value in copies.restore(step)[0].values())


def test_a_run_that_ends_before_its_time_leaves_its_model(tmp_path):
    stopping = {"metric": "mae", "mode": "higher", "patience": 1}
    config = params(train_steps=40, validation_interval=8, checkpoint_interval=0, early_stopping=stopping)
    copies = copied(tmp_path, config, "train_and_eval")
    assert copies.steps() == [OrbaxCheckpointer(tmp_path / "checkpoints").latest()]
    assert copies.steps()[0] < 40


def test_averaged_weights_are_copied(tmp_path):
    config = params(train_steps=8)
    config.override({"trainer": {"optimizer_config": {"ema": {"average_decay": 0.9}}}})
    state, _ = copied(tmp_path, config).restore()
    whole, _ = OrbaxCheckpointer(tmp_path / "checkpoints").restore()
    (mean,) = [key for key in whole if "model/dense/kernel" in key and key.endswith("average")]
    assert np.array_equal(state["model/dense/kernel"], whole[mean])
    assert not np.array_equal(state["model/dense/kernel"], whole["model/dense/kernel"])


def test_a_disk_that_does_not_take_them(tmp_path, caplog, monkeypatch):
    def refuse(*args):
        raise SaveError("No space left on device")

    monkeypatch.setattr(WeightsFolder, "write", refuse)
    with raises_problem(SaveError, reason="the weights in exported_ckpts are not exported: No space left"):
        copied(tmp_path / "stop", params(train_steps=4))
    copied(tmp_path / "continue", params(train_steps=4, save_failure="continue"))
    assert "the weights in exported_ckpts are not exported: No space left on device; training continues" in caplog.text


def test_another_run_starts_from_them(tmp_path):
    copied(tmp_path / "grown", params(train_steps=8))
    plain = tiny_params(train_steps=4)
    plain.override({"task": {"init_checkpoint": str(tmp_path / "grown" / "exported_ckpts")}})
    plain.override({"trainer": {"optimizer_config": {"learning_rate": {"constant": {"learning_rate": 0.0}}}}})
    model, _ = run("train", tmp_path / "plain", Started(plain.task), plain)
    state, _ = OrbaxCheckpointer(tmp_path / "grown" / "exported_ckpts").restore()
    assert np.array_equal(model.layers[0].get_weights()[0], state["model/dense/kernel"])


def test_no_copies_unless_configured(tmp_path):
    class Plain:
        """A trainer that knows nothing of stages."""

    class Staged(Plain):
        stage = 0

    wanted = es.ProgressiveTrainerConfig()
    assert maybe_create_exported_copies(wanted, Staged(), tmp_path) is not None
    assert maybe_create_exported_copies(wanted, Plain(), tmp_path) is None
    assert maybe_create_exported_copies(wanted.replace(export_checkpoint=False), Staged(), tmp_path) is None
    assert maybe_create_exported_copies(es.TrainerConfig(), Staged(), tmp_path) is None


@pytest.mark.parametrize("name", ["export_checkpoint_interval", "export_max_to_keep"])
def test_numbers_that_cannot_be(name):
    with raises_problem(key=f"trainer.{name}", received=-5, reason=r"must be at least \d"):
        params(**{name: -5}).validate()


def test_a_run_in_stages_has_them(tmp_path):
    """Whether it has may change from attempt to attempt."""
    own = {"export_checkpoint": True, "export_only_final_stage_ckpt": False}
    run("train", tmp_path, Stages(), params(train_steps=8, **own))
    run("train", tmp_path, Stages(), params(train_steps=12))
    run("train", tmp_path, Stages(), params(train_steps=20, **own))
    assert OrbaxCheckpointer(tmp_path / "exported_ckpts").steps() == [4, 8, 16, 20]


def test_early_stopping_in_a_run_in_stages(tmp_path):
    stopping = {"metric": "mae", "mode": "higher", "patience": 1}
    config = params(train_steps=40, checkpoint_interval=0, early_stopping=stopping, export_checkpoint=True)
    run("train_and_eval", tmp_path, Stages(), config)
    newest = OrbaxCheckpointer(tmp_path / "checkpoints").latest()
    assert OrbaxCheckpointer(tmp_path / "exported_ckpts").steps() == [newest]
