"""Which checkpoints `--checkpoint` means."""

import json
import shutil

import numpy as np
import pytest

from everstep.checkpoint.orbax import OrbaxCheckpointer
from everstep.checkpoint.retention import Retention
from everstep.run.checkpoint_selection import choose
from everstep.testing.problems import raises_problem

ACCURACY = {5: 0.5, 10: 0.9, 15: 0.8}


@pytest.fixture(scope="module")
def run_with_checkpoints(tmp_path_factory):
    """A run with three checkpoints, and other files in their folder."""
    run = tmp_path_factory.mktemp("run")
    checkpointer = OrbaxCheckpointer(run / "checkpoints", Retention(newest=9))
    for step, accuracy in ACCURACY.items():
        checkpointer.save(step, {"model/w": np.array([float(step)])}, {"step": step}, {"accuracy": accuracy})
    checkpointer.close()
    for name in ("20", "15.damaged", ".everstep-abc-25", "notes"):
        (run / "checkpoints" / name).mkdir()
    return run


def config(run, **trainer):
    (run / "config.yaml").write_text(json.dumps({"trainer": trainer}))


@pytest.mark.parametrize(
    ("wanted", "steps", "text"),
    [
        ("last", [15], "step 15"),
        ("5", [5], "step 5"),
        ("15,5", [5, 15], "the average of steps 5 and 15"),
        ("last:1", [15], "step 15"),
        ("last:3", [5, 10, 15], "the average of steps 5, 10 and 15"),
    ],
)
def test_selected_checkpoints(run_with_checkpoints, wanted, steps, text):
    chosen = choose(run_with_checkpoints, wanted)
    assert (chosen.steps, str(chosen)) == (steps, text)
    assert all(path.is_dir() for path in chosen.paths)


@pytest.mark.parametrize("wanted", ["", "-1", "1.5", "newest", "5,", "5, 10", "05", "last:0", "last:-1", "5;10", "٥"])
def test_nonsense(run_with_checkpoints, wanted):
    with raises_problem(key="--checkpoint", received=wanted, reason="expected a step, best, last, steps to average"):
        choose(run_with_checkpoints, wanted)


@pytest.mark.parametrize(
    ("wanted", "fields"),
    [
        ("20", {"received": "20", "reason": "has no step 20", "remedy": "there are: 5, 10, 15"}),
        ("5,6", {"received": "5,6", "reason": "has no step 6", "remedy": "there are: 5, 10, 15"}),
        ("last:4", {"received": "last:4", "reason": "has fewer checkpoints", "remedy": "there are: 5, 10, 15"}),
        ("5,10,5", {"received": "5,10,5", "reason": "a step counts once"}),
    ],
)
def test_missing_checkpoints(run_with_checkpoints, wanted, fields):
    with raises_problem(key="--checkpoint", **fields):
        choose(run_with_checkpoints, wanted)


def test_a_run_without_checkpoints(tmp_path):
    for wanted in ("last", "5", "last:2", "best"):
        with raises_problem(key="--checkpoint", remedy="there is none$"):
            choose(tmp_path, wanted)


def test_the_best_by_the_metric_that_the_run_names(run_with_checkpoints):
    config(run_with_checkpoints, best_checkpoint_eval_metric="accuracy")
    assert choose(run_with_checkpoints, "best").steps == [10]
    config(run_with_checkpoints, best_checkpoint_eval_metric="accuracy", best_checkpoint_metric_comp="lower")
    assert choose(run_with_checkpoints, "best").steps == [5]
    for nothing in ({}, {"best_checkpoint_eval_metric": "recall"}):
        config(run_with_checkpoints, **nothing)
        with raises_problem(
            key="--checkpoint", received="best", reason="best_checkpoint_eval_metric", remedy="there are: 5, 10, 15"
        ):
            choose(run_with_checkpoints, "best")


def test_exported_best_weights_come_first(run_with_checkpoints):
    """It may be of a step that is no more; where the whole checkpoint is there, an evaluation takes that."""
    config(run_with_checkpoints, best_checkpoint_eval_metric="accuracy", best_checkpoint_export_subdir="top")
    folder = OrbaxCheckpointer(run_with_checkpoints / "top", Retention(newest=9))
    for step in (7, 15):
        folder.save(step, {"model/w": np.array([1.0])}, {"step": step})
    folder.close()
    for step, whole in ((7, "top"), (15, "checkpoints")):
        (run_with_checkpoints / "top" / "info.json").write_text(json.dumps({"best_ckpt_global_step": step}))
        assert choose(run_with_checkpoints, "best").paths == (run_with_checkpoints / "top" / str(step),)
        assert choose(run_with_checkpoints, "best", needs="task").paths == (run_with_checkpoints / whole / str(step),)
    (run_with_checkpoints / "top" / "info.json").write_text(json.dumps({"best_ckpt_global_step": 8}))
    assert choose(run_with_checkpoints, "best").steps == [10], "the weights that it names are missing"


def history(run, losses, **record):
    rows = "".join(f"{step},{loss}\n" for step, loss in losses.items())
    (run / "history.csv").write_text(f"step,validation_loss\n{rows}")
    (run / "run.json").write_text(json.dumps({"id": "a", "step": 15, **record}))


def test_without_a_metric_the_best_has_the_lowest_validation_loss(run_with_checkpoints, tmp_path):
    run = shutil.copytree(run_with_checkpoints, tmp_path / "run", ignore=shutil.ignore_patterns("top"))
    config(run)
    history(run, {5: 0.4, 10: 0.2, 15: "nan"})
    chosen = choose(run, "best")
    assert (chosen.steps, chosen.description) == ([10], "step 10: the lowest validation loss, 0.2")
    assert choose(run, "10").description == "step 10"
    history(run, {5: 0.4, 7: 0.1})
    with raises_problem(
        key="--checkpoint", reason="0.1, was at step 7, whose weights are not kept", remedy="5, 10, 15"
    ):
        choose(run, "best")


def test_weights_that_were_restored_at_the_end(run_with_checkpoints, tmp_path):
    """The last checkpoint has them, too; it says so."""
    run = shutil.copytree(run_with_checkpoints, tmp_path / "run", ignore=shutil.ignore_patterns("top"))
    config(run)
    history(run, {5: 0.1}, final_weights={"step": 10, "epoch": 2})
    note = "the weights of epoch 2 (step 10), restored at the end"
    assert [choose(run, wanted).description for wanted in ("best", "last", "15", "10")] == [
        f"step 10: {note}",
        f"step 15: {note}",
        f"step 15: {note}",
        "step 10",
    ]
    shutil.rmtree(run / "checkpoints" / "10")
    assert choose(run, "best").steps == [15]
