"""A moving average of the weights: evaluated and exported in their place, and put back bit by bit."""

import json

import keras
import numpy as np
import pytest

from everstep.checkpoint.orbax import OrbaxCheckpointer
from everstep.experiment import create_trainer

from .samples import TinyTask, run, tiny_params, weights

pytestmark = pytest.mark.backend


def averaging(**trainer):
    params = tiny_params(**trainer)
    params.override({"trainer": {"optimizer_config": {"ema": {"average_decay": 0.9, "dynamic_decay": False}}}})
    return params


def state_of(directory):
    return OrbaxCheckpointer(directory / "checkpoints").restore()[0]


def averages(state):
    found = {key: array for key, array in state.items() if key.endswith("/moving_average")}
    assert found
    return {key.removeprefix("optimizer/").removesuffix("/moving_average"): array for key, array in found.items()}


def test_evaluation_leaves_the_weights_as_they_are():
    trainer = create_trainer(averaging(), TinyTask(), train=True, evaluate=True)
    trainer.train(8)
    before = trainer.engine.state()
    logs = trainer.evaluate()
    after = trainer.engine.state()
    assert all(np.array_equal(before[key], after[key]) for key in before)
    trainer.engine.load({**before, **averages(before)})
    trainer.optimizer = None  # nothing to exchange: what the averages give by themselves
    assert trainer.evaluate()["validation_loss"] == logs["validation_loss"]
    trainer.close()


def test_a_job_that_only_evaluates_has_the_averages_too(tmp_path):
    _, logs = run("train_and_eval", tmp_path, params=averaging())
    _, alone = run("eval", tmp_path, params=averaging())
    assert alone["validation_loss"] == logs["validation_loss"]


class Compiled(TinyTask):
    """Its model brings its own optimizer, which keeps an average that is not evaluated."""

    def build_model(self):
        model = super().build_model()
        model.compile(keras.optimizers.Adam(0.05, use_ema=True, ema_momentum=0.99), "mse")
        return model


def test_an_average_of_kerass_own_is_evaluated_nowhere(tmp_path):
    _, logs = run("train_and_eval", tmp_path, task=Compiled())
    _, alone = run("eval", tmp_path, task=Compiled())
    assert alone["validation_loss"] == logs["validation_loss"]


def test_the_export_is_what_was_evaluated(tmp_path):
    model, _ = run("train_and_eval", tmp_path, params=averaging(), export=True)
    exported = keras.saving.load_model(tmp_path / "export" / "model.keras")
    state = state_of(tmp_path)
    expected = np.concatenate([averages(state)[key].ravel() for key in averages(state)])
    np.testing.assert_array_equal(np.sort(weights(exported)), np.sort(expected))
    assert not np.array_equal(weights(exported), weights(model)), "what is trained on is not the average"


@pytest.mark.parametrize("dtype", [None, pytest.param("float16", marks=pytest.mark.full)])
def test_interrupted_runs_end_in_the_same_bits(tmp_path, dtype):
    params = averaging()
    params.override({"runtime": {"mixed_precision_dtype": dtype}})
    run("train_and_eval", tmp_path / "whole", params=params)
    shorter = params.replace(trainer=averaging(train_steps=8).trainer)
    run("train_and_eval", tmp_path / "cut", params=shorter)
    run("train_and_eval", tmp_path / "cut", params=params)
    digests = [json.loads((tmp_path / name / "run.json").read_text())["digest"] for name in ("whole", "cut")]
    assert digests[0] == digests[1]
