"""An evaluation before the first step: it fails early, and changes nothing."""

import json

import numpy as np
import pytest

import everstep as es
from everstep.errors import UsageError
from everstep.testing import models
from everstep.testing.problems import raises_problem
from loop.samples import TinyTask, tiny_params

pytestmark = pytest.mark.slow


def run(directory, task, mode="train_and_eval", **trainer):
    """Trains; returns the logs of the end, and what run.json says."""
    params = tiny_params(**trainer)
    _, logs = es.run_experiment(task, params, directory, mode, verbose=False, export=False)
    return logs, json.loads((directory / "run.json").read_text())


class Drawing(TinyTask):
    """Draws at every turn: in dropout, also when it evaluates, and from the generators that everybody shares."""

    def build_model(self):
        return models.mlp(dropout=0.5)

    def inference_step(self, inputs, model):
        return model(inputs, training=True)

    def aggregate_logs(self, state=None, step_outputs=None):
        np.random.normal()
        return state or step_outputs

    def reduce_aggregated_logs(self, aggregated_logs, global_step=None):
        return {"drawn": np.random.normal()}


@pytest.mark.backend
@pytest.mark.parametrize("averaged", [False, pytest.param(True, marks=pytest.mark.full)])
def test_it_changes_no_bit(tmp_path, averaged):
    settings = {"optimizer_config": {"ema": {"average_decay": 0.9}}} if averaged else {}
    plain, before = run(tmp_path / "plain", Drawing(), **settings)
    tried, after = run(tmp_path / "tried", Drawing(), sanity_validation_steps=2, **settings)
    assert (after["digest"], after["weights_digest"]) == (before["digest"], before["weights_digest"])
    assert {**tried, "eval_seconds": 0} == {**plain, "eval_seconds": 0}
    histories = [(tmp_path / name / "history.csv").read_text().splitlines() for name in ("plain", "tried")]
    assert len(histories[0]) == len(histories[1])


class Failing(TinyTask):
    """Cannot evaluate."""

    calls = 0

    def reduce_aggregated_logs(self, aggregated_logs, global_step=None):
        raise UsageError(f"cannot evaluate at step {global_step}")

    def aggregate_logs(self, state=None, step_outputs=None):
        return state or step_outputs


def test_it_fails_before_the_first_step(tmp_path):
    with raises_problem(reason="cannot evaluate at step 0"):
        run(tmp_path / "run", Failing(), sanity_validation_steps=1)
    assert not (tmp_path / "run").exists()


class Counting(TinyTask):
    """Counts evaluations."""

    def __init__(self):
        super().__init__()
        self.evaluations = []

    def aggregate_logs(self, state=None, step_outputs=None):
        return (state or 0) + 1

    def reduce_aggregated_logs(self, aggregated_logs, global_step=None):
        self.evaluations.append((global_step, aggregated_logs))
        return {}


def test_it_is_for_new_runs(tmp_path):
    task = Counting()
    run(tmp_path / "run", task, train_steps=4, sanity_validation_steps=2)
    assert task.evaluations == [(0, 2), (4, 4)]
    again = Counting()
    run(tmp_path / "run", again, train_steps=8, sanity_validation_steps=2)
    assert again.evaluations == [(8, 4)]
