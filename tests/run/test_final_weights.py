"""Which weights a run ended with, as its record says it."""

import types

import pytest

from everstep.loop.schedule import EpochSchedule, StepSchedule
from everstep.run.ending import record_ending
from everstep.run.final_weights import read_final_weights, stopped_early
from everstep.run.record import Run

METRICS = {"train": {"training_loss": 0.3, "accuracy": 0.8}, "validation": {"validation_loss": 0.5, "accuracy": 0.7}}
HISTORY = """step,training_loss,accuracy,validation_loss,validation_accuracy
10,0.9,0.5,0.8,0.4
20,0.6,0.6,0.4,0.75
30,0.3,0.8,0.5,0.7
"""


def ended(directory, schedule, restored=None, stopped="", states=None, step=30, exported=True):
    run = Run.open(directory, "line", "jax")
    directory.mkdir(exist_ok=True)
    (directory / "history.csv").write_text(HISTORY)
    run.record |= {"step": step, "metrics": METRICS, "states": states or {}, "epochs": schedule.total_epochs}
    hooks = [types.SimpleNamespace(restored_step=found) for found in (None, restored)]
    progress = types.SimpleNamespace(target=50)
    controller = types.SimpleNamespace(step=step, stopped=stopped, hooks=hooks, progress=progress)
    record_ending(run, controller, schedule, exported)
    return run.record


def test_the_weights_of_an_earlier_epoch(tmp_path):
    record = ended(tmp_path, EpochSchedule(5, None, 10), restored=20, stopped="EarlyStopping")
    final = read_final_weights(record, tmp_path)
    assert (final.step, final.epoch, final.mark) == (20, 2, "epoch 2, exported")
    assert final.metrics == {
        "train": {"training_loss": 0.6, "accuracy": 0.6},
        "validation": {"validation_loss": 0.4, "accuracy": 0.75},
    }
    assert record["stopped_early"] == {"step": 30, "epoch": 3, "reason": "EarlyStopping"}
    assert stopped_early(record) == "stopped early at epoch 3 of 5"


def test_the_last_weights(tmp_path):
    record = ended(tmp_path, EpochSchedule(5, None, 10))
    assert record["final_weights"] == {"step": 30, "epoch": 3, "exported": True}
    assert read_final_weights(record, tmp_path) is None
    assert (record["stopped_early"], stopped_early(record)) == (None, "")


@pytest.mark.parametrize(
    ("states", "step"),
    [
        ({"10": "a", "20": "b", "30": "c"}, None),
        ({"10": "a", "20": "b", "30": "a"}, 10),
        ({"10": "a", "20": "a", "30": "a"}, None),  # nothing was trained in between
        ({"20": "a", "30": "b"}, None),
        ({}, None),
    ],
)
def test_a_callback_that_restores_weights_in_its_own_way(tmp_path, states, step):
    final = read_final_weights(ended(tmp_path, EpochSchedule(5, None, 10), states=states), tmp_path)
    assert (final and final.step) == step


def test_a_run_that_counts_steps(tmp_path):
    record = ended(tmp_path, StepSchedule(10), restored=20, stopped="enough", exported=False)
    assert read_final_weights(record, tmp_path).mark == "step 20, restored"
    assert stopped_early({**record, "train_steps": 50}) == "stopped early at step 30 of 50"


def test_records_of_before(tmp_path):
    assert read_final_weights({"step": 3, "metrics": {}}, tmp_path) is None
    assert read_final_weights(None, tmp_path) is None
    assert stopped_early({"step": 3}) == ""
