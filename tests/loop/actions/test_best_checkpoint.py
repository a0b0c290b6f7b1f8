"""The best weights: which, when, and whatever happens meanwhile."""

import json
import math
import os
import shutil

import numpy as np
import pytest

import everstep as es
from everstep.actions import BestCheckpointExporter, maybe_create_best_ckpt_exporter
from everstep.checkpoint.checkpointer import NoopCheckpointer, SaveError
from everstep.checkpoint.orbax import OrbaxCheckpointer
from everstep.testing.problems import raises_problem


class Trainer:
    """One whose only weight is its step."""

    optimizer = None

    def __init__(self):
        self.engine, self.variables, self.global_step = self, {}, 0

    def state(self):
        return {"model/step": np.array([self.global_step]), "optimizer/slot": np.zeros(3)}


def evaluate(exporter, values, first=1, name="accuracy"):
    """Shows evaluations of steps that follow one another; returns which were the best so far, and the last logs."""
    trainer, better = Trainer(), []
    for trainer.global_step, value in enumerate(values, first):
        logs = {name: value, "loss": 1.0, "eval_seconds": float(trainer.global_step)}
        better.append(exporter.maybe_export_checkpoint(trainer, logs, trainer.global_step))
    return better, logs


def stored(directory):
    """Returns the content of `info.json`, after checking the weights that it names."""
    info = json.loads((directory / "info.json").read_text())
    state, meta = OrbaxCheckpointer(directory, repair=False).restore(info["best_ckpt_global_step"])
    assert state["model/step"].tolist() == [info["best_ckpt_global_step"]]
    assert meta["info"] == info
    return info


def names(directory):
    return sorted(path.name for path in directory.iterdir())


def test_one_best_and_what_it_is(tmp_path):
    exporter = BestCheckpointExporter(tmp_path, "accuracy")
    better, logs = evaluate(exporter, [0.5, 0.4, 0.75, 0.75, 0.7])
    assert better == [True, False, True, False, False]
    assert logs["best_accuracy"] == 0.75
    assert names(tmp_path) == ["3", "info.json"]
    assert stored(tmp_path) == {"accuracy": 0.75, "loss": 1.0, "best_ckpt_global_step": 3}
    assert exporter.best_ckpt_logs == stored(tmp_path)
    assert exporter.best_ckpt_path == str(tmp_path / "3")
    assert list(OrbaxCheckpointer(tmp_path, repair=False).restore()[0]) == ["model/step"]


def test_comparison_continues_after_a_restart(tmp_path):
    evaluate(BestCheckpointExporter(tmp_path, "accuracy", "lower"), [0.5, 0.4])
    again = BestCheckpointExporter(tmp_path, "accuracy", "lower")
    assert again.best_value == 0.4
    assert evaluate(again, [0.45, 0.4, 0.3], first=3)[0] == [False, False, True]
    assert names(tmp_path) == ["5", "info.json"]


def test_another_metric_begins_where_the_weights_are(tmp_path):
    """All metrics of the best are stored, so the comparison can continue with another one of them."""
    evaluate(BestCheckpointExporter(tmp_path, "accuracy"), [0.5])
    assert BestCheckpointExporter(tmp_path, "loss", "lower").best_value == 1.0
    other = BestCheckpointExporter(tmp_path, "f1")
    assert other.best_value is None
    assert evaluate(other, [0.1], first=2, name="f1")[0] == [True]


def test_nan_is_never_best(tmp_path):
    better, logs = evaluate(BestCheckpointExporter(tmp_path, "accuracy"), [math.nan, math.inf])
    assert better == [False, False]
    assert "best_accuracy" not in logs
    assert names(tmp_path) == []
    assert evaluate(BestCheckpointExporter(tmp_path, "accuracy"), [0.1, math.nan])[0] == [True, False]


def test_metrics_that_are_not_finite_are_written(tmp_path):
    logs = {"a": {"b": 0.5, "c": math.nan}, "d": np.float32(math.inf)}
    assert BestCheckpointExporter(tmp_path, "a|b").maybe_export_checkpoint(Trainer(), logs, 4)
    assert logs["best_a|b"] == 0.5
    info = {"a": {"b": 0.5, "c": "NaN"}, "d": "Infinity", "best_ckpt_global_step": 4}
    assert json.loads((tmp_path / "info.json").read_text()) == info
    assert BestCheckpointExporter(tmp_path, "a|b").best_value == 0.5


def test_an_unknown_metric_names_those_there_are(tmp_path):
    with raises_problem(key="trainer.best_checkpoint_eval_metric", received="acc", remedy=": accuracy, loss$"):
        evaluate(BestCheckpointExporter(tmp_path, "acc"), [0.5])
    with raises_problem(key="trainer.best_checkpoint_metric_comp", received="max"):
        BestCheckpointExporter(tmp_path, "accuracy", "max")


# -- killed, and run again ---------------------------------------------------------------------------------------------


def resumed(directory, exporter_then):
    """Another attempt, from a checkpoint that was saved when the exporter was as given."""
    exporter = BestCheckpointExporter(directory, "accuracy")
    exporter.set_state(exporter_then)
    return exporter


def test_a_killed_attempt_was_further(tmp_path):
    """Saved at 2, the best exported at 4, killed: the next attempt does 3 and 4 as if nothing had happened."""
    exporter = BestCheckpointExporter(tmp_path, "accuracy")
    evaluate(exporter, [0.5, 0.4])
    saved = exporter.get_state()
    evaluate(exporter, [0.6, 0.7], first=3)
    again = resumed(tmp_path, saved)
    better, logs = evaluate(again, [0.45], first=3)
    assert (better, logs["best_accuracy"]) == ([False], 0.5)
    assert stored(tmp_path)["best_ckpt_global_step"] == 4  # still the best there are
    assert evaluate(resumed(tmp_path, saved), [0.6, 0.7, 0.6], first=3)[0] == [True, True, False]
    assert names(tmp_path) == ["4", "info.json"]


def test_a_new_run_ignores_weights_of_later_steps(tmp_path):
    """Killed before it had saved anything."""
    evaluate(BestCheckpointExporter(tmp_path, "accuracy"), [0.5, 0.7])
    again = BestCheckpointExporter(tmp_path, "accuracy")
    assert evaluate(again, [0.5])[1]["best_accuracy"] == 0.5
    assert evaluate(again, [0.7, 0.6], first=2)[0] == [True, False]
    assert names(tmp_path) == ["2", "info.json"]


def test_the_same_step_with_other_numbers_is_written_again(tmp_path):
    exporter = BestCheckpointExporter(tmp_path, "accuracy")
    saved = exporter.get_state()
    evaluate(exporter, [0.5])
    before = (tmp_path / "1" / "manifest.json").read_bytes()
    again = resumed(tmp_path, saved)
    assert evaluate(again, [0.5])[0] == [True]
    assert (tmp_path / "1" / "manifest.json").read_bytes() == before  # it is there
    assert evaluate(resumed(tmp_path, saved), [0.3])[0] == [True]
    assert stored(tmp_path)["accuracy"] == 0.3
    assert names(tmp_path) == ["1", "info.json"]


class Controller:
    """One that has come to a step."""

    def __init__(self, step):
        self.step, self.checkpointer = step, NoopCheckpointer()


@pytest.mark.parametrize(("step", "best"), [(2, 0.7), (1, 0.5)])
def test_an_evaluation_after_the_last_save_counts_if_it_is_of_no_later_step(tmp_path, step, best):
    """The closing one of `train_and_post_eval`; one of a later step is of an attempt that was killed."""
    exporter = BestCheckpointExporter(tmp_path, "accuracy")
    evaluate(exporter, [0.5])
    saved = exporter.get_state()
    evaluate(exporter, [0.7], first=2)
    again = BestCheckpointExporter(tmp_path, "accuracy")
    again.set_controller(Controller(step))
    again.set_state(saved)
    assert again.best_value == best


def test_weights_that_were_removed_are_not_missed(tmp_path):
    exporter = BestCheckpointExporter(tmp_path / "best", "accuracy")
    evaluate(exporter, [0.5])
    shutil.rmtree(tmp_path / "best")
    assert evaluate(resumed(tmp_path / "best", exporter.get_state()), [0.1], first=2)[0] == [True]


def test_at_every_instant_info_and_weights_agree(tmp_path, monkeypatch):
    """Copies the folder before and after every change of a name: what a kill at that instant would leave."""
    directory, copies = tmp_path / "best", []

    def watched(change):
        def changed(*args, **kwargs):
            copy()
            change(*args, **kwargs)
            copy()

        return changed

    def copy():
        if directory.exists():
            copies.append(tmp_path / "copies" / str(len(copies)))
            shutil.copytree(directory, copies[-1], ignore=shutil.ignore_patterns("*orbax-checkpoint-tmp*"))

    exporter = BestCheckpointExporter(directory, "accuracy")
    evaluate(exporter, [0.5])
    for name in ("rename", "replace"):
        monkeypatch.setattr(os, name, watched(getattr(os, name)))
    evaluate(exporter, [0.6, 0.7], first=2)
    monkeypatch.undo()
    assert len(copies) > 10
    seen = []
    for left in copies:
        seen.append(stored(left)["best_ckpt_global_step"])
        again = BestCheckpointExporter(left, "accuracy")
        assert names(left) == [str(seen[-1]), "info.json"]
        assert again.best_value == stored(left)["accuracy"]
    assert sorted(set(seen)) == [1, 2, 3]
    assert seen == sorted(seen)


def test_info_follows_the_weights(tmp_path):
    """Killed after the same step was written again and before `info.json` was; or that was edited."""
    evaluate(BestCheckpointExporter(tmp_path, "accuracy"), [0.5])
    for text in ('{"accuracy": 0.9, "best_ckpt_global_step": 1}', "{", "[]", None):
        (tmp_path / "info.json").unlink() if text is None else (tmp_path / "info.json").write_text(text)
        assert BestCheckpointExporter(tmp_path, "accuracy").best_value == 0.5
        assert stored(tmp_path)["accuracy"] == 0.5


@pytest.mark.parametrize("failure", ["stop", "continue"])
def test_a_full_disk(tmp_path, monkeypatch, failure, caplog):
    exporter = BestCheckpointExporter(tmp_path, "accuracy", failure=failure)
    evaluate(exporter, [0.5])

    def full(*args):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(OrbaxCheckpointer, "_write", full)
    if failure == "stop":
        with raises_problem(SaveError, reason="best weights are not exported: step 2 could not be saved"):
            evaluate(exporter, [0.6], first=2)
    else:
        assert evaluate(exporter, [0.6], first=2) == ([False], {**LOGS, "accuracy": 0.6, "best_accuracy": 0.5})
        assert "No space left on device; the checkpoints before it are untouched; training continues" in caplog.text
    monkeypatch.undo()
    assert stored(tmp_path)["best_ckpt_global_step"] == 1
    assert evaluate(exporter, [0.55], first=3)[0] == [True]


@pytest.mark.parametrize("failure", ["stop", "continue"])
def test_what_is_not_a_number_is_never_written(tmp_path, failure, caplog):
    """The state is judged before an evaluation; where it is not, the weights there are stay."""

    class Broken(Trainer):
        def state(self):
            return {"model/step": np.array([1.0, math.nan]), "model/mask": np.array(-math.inf)}

    exporter = BestCheckpointExporter(tmp_path, "accuracy", failure=failure)
    evaluate(exporter, [0.5])
    assert not exporter.maybe_export_checkpoint(Broken(), {"accuracy": 0.9}, 2)
    assert "the best weights are not exported: model/step is NaN at step 2" in caplog.text
    assert exporter.best_value == stored(tmp_path)["accuracy"] == 0.5
    assert names(tmp_path) == ["1", "info.json"]


LOGS = {"loss": 1.0, "eval_seconds": 2.0}


# -- whether there is one ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("missing", ["data_dir", "best_checkpoint_export_subdir", "best_checkpoint_eval_metric", None])
def test_exporter_exists_if_everything_is_configured(tmp_path, missing):
    params = es.ExperimentConfig()
    settings = {"best_checkpoint_export_subdir": "best", "best_checkpoint_eval_metric": "accuracy"}
    params.override({"trainer": {name: value for name, value in settings.items() if name != missing}})
    exporter = maybe_create_best_ckpt_exporter(params, "" if missing == "data_dir" else tmp_path)
    assert (exporter is None) == (missing is not None)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("folder", [".", "..", "a/../../b", "/tmp/best", "checkpoints", "export/best", "validation"])
def test_a_folder_of_its_own(folder):
    params = es.ExperimentConfig()
    params.override({"trainer": {"best_checkpoint_export_subdir": folder, "best_checkpoint_eval_metric": "mae"}})
    with raises_problem(key="trainer.best_checkpoint_export_subdir", received=folder, reason="such as 'best'"):
        params.validate()


def test_a_folder_without_a_metric_is_a_mistake():
    params = es.ExperimentConfig()
    params.override({"trainer": {"best_checkpoint_export_subdir": "best"}})
    with raises_problem(key="trainer.best_checkpoint_eval_metric", reason="is empty, but .* is 'best'"):
        params.validate()


def test_values_that_are_no_numbers_are_not_in_the_file(tmp_path):
    """A task may show an action an image among its metrics."""
    exporter = BestCheckpointExporter(tmp_path, "scores|accuracy")
    logs = {"scores": {"accuracy": 0.5, "image": np.zeros((4, 4)), "none": None}, "text": "good"}
    trainer = Trainer()
    trainer.global_step = 1
    assert exporter.maybe_export_checkpoint(trainer, logs, 1)
    assert stored(tmp_path) == {"scores": {"accuracy": 0.5}, "best_ckpt_global_step": 1}
