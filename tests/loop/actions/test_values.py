"""Conditions, values in files, and names for exports."""

import json
import math
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from everstep.actions import ConditionalAction, ExportFileManager, JSONPersistedValue, NewBestMetric
from everstep.loop.actions.metrics import scalars
from everstep.testing.problems import raises_problem

pytestmark = pytest.mark.slow


def test_test_does_not_remember_and_commit_does():
    best = NewBestMetric("accuracy")
    assert best.test({"accuracy": 0.5})
    assert best.best_value is None
    assert best.commit({"accuracy": 0.5})
    assert best.best_value == 0.5
    assert not best.test({"accuracy": 0.5})  # of equal ones the older stays
    assert best({"accuracy": 0.75})
    assert not best({"accuracy": 0.6})
    assert best.best_value == 0.75


def test_lower_and_functions():
    best = NewBestMetric(lambda logs: logs["a"] + logs["b"], higher_is_better=False)
    assert [best({"a": value, "b": 1}) for value in (3, 2, 2, 1.5)] == [True, True, False, True]
    assert best.best_value == 2.5


@pytest.mark.parametrize("higher", [True, False])
def test_what_is_not_finite_is_never_best(higher):
    best = NewBestMetric("a", higher)
    assert [best({"a": value}) for value in (math.nan, math.inf, -math.inf, 1.0, math.nan)] == [
        *(False, False, False),
        *(True, False),
    ]


def test_nested_metrics():
    best = NewBestMetric("masked|accuracy")
    assert best({"masked": {"accuracy": np.float32(0.5), "loss": 1.0}, "loss": 2.0})
    assert best.best_value == 0.5
    with raises_problem(key="NewBestMetric", received="masked|accuracy", remedy=r": loss, masked\|loss"):
        best({"masked": {"loss": 1.0}, "loss": 2.0, "eval_seconds": 1.0})


def test_the_best_is_kept_in_a_file(tmp_path):
    path = tmp_path / "deep" / "best.json"
    assert NewBestMetric("a", filename=path)({"a": np.float32(0.5)})
    assert json.loads(path.read_text()) == {"best": 0.5, "step": None}
    again = NewBestMetric("a", filename=path, write_metric=False)
    assert not again({"a": 0.4})
    assert again({"a": 0.6})
    assert json.loads(path.read_text())["best"] == 0.5  # it was only to be read
    path.write_text("0.7")  # as Model Garden writes it
    assert NewBestMetric("a", filename=path).best_value == 0.7


class At:
    """A controller that has come to a step."""

    def __init__(self, step):
        self.step = step


def best_at(step, path, state=None, **settings):
    best = NewBestMetric("a", filename=path, **settings)
    best.set_controller(At(step))
    if state is not None:
        best.set_state(state)
    return best


def test_a_later_best_of_a_killed_attempt_is_ignored(tmp_path):
    """Killed before anything was saved: what it found comes again. Of an earlier step, it is the run's own."""
    path = tmp_path / "best.json"
    assert best_at(6, path)({"a": 0.7})
    assert not best_at(8, path).test({"a": 0.6})
    assert not best_at(2, path, write_metric=False).test({"a": 0.6})  # another program's
    again = best_at(2, path)
    assert [again.test({"a": 0.5}), again({"a": 0.5}), again({"a": 0.4})] == [True, True, False]
    assert json.loads(path.read_text()) == {"best": 0.5, "step": 2}
    assert best_at(6, path)({"a": 0.7})


def test_the_file_is_newer_than_the_checkpoint(tmp_path):
    path = tmp_path / "best.json"
    (best := best_at(4, path))({"a": 0.5})
    saved = best.get_state()
    assert best_at(6, path)({"a": 0.7})
    assert best_at(6, path, saved).best_value == 0.7  # an evaluation after the last save
    assert best_at(4, path, saved).best_value == 0.5  # an attempt that was killed
    assert json.loads(path.read_text()) == {"best": 0.5, "step": 4}


def test_a_persisted_value(tmp_path):
    path = tmp_path / "value.json"
    JSONPersistedValue({"n": 1}, path).write({"n": 2})
    assert JSONPersistedValue(None, path).read() == {"n": 2}
    assert [entry.name for entry in tmp_path.iterdir()] == ["value.json"]
    assert JSONPersistedValue(7, tmp_path / "none.json", write_value=False).read() == 7
    assert not (tmp_path / "none.json").exists()
    memory = JSONPersistedValue(1, None)
    memory.write(2)
    assert memory.read() == 2
    path.write_text("{")
    with raises_problem(key=str(path), reason="not valid JSON"):
        JSONPersistedValue(None, path)


def test_conditional_action():
    done = []
    several = ConditionalAction(lambda logs: logs["go"], [lambda logs: done.append(1), lambda logs: done.append(2)])
    one = ConditionalAction(lambda logs: not logs["go"], lambda logs: done.append(3))
    for go in (True, False):
        several({"go": go})
        one({"go": go})
    assert done == [1, 2, 3]


class Counts:
    def __init__(self):
        self.calls, self.seen = 0, np.zeros(2)

    def __call__(self, logs):
        self.calls += 1
        self.seen = self.seen + logs["a"]


def test_state_inside_a_conditional_action_is_saved():
    def counting_action():
        return ConditionalAction(NewBestMetric("a"), Counts())

    first, second = counting_action(), counting_action()
    for value in (1.0, 3.0, 2.0):
        first({"a": value})
    second.set_state(first.get_state())
    second({"a": 2.5})
    assert second.actions[0].calls == 2
    assert second.actions[0].seen.tolist() == [4.0, 4.0]
    second({"a": 3.5})
    assert second.actions[0].calls == 3


def test_registering_a_name_loads_no_keras():
    code = "import sys, everstep.actions as a; a.register_action('x'); print('keras' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


# -- names -------------------------------------------------------------------------------------------------------------


def written(files, count):
    names = []
    for _ in range(count):
        names.append(files.next_name())
        with open(names[-1], "w"):
            files.clean_up()
    return [name.rpartition("/")[2] for name in names]


def test_numbers_go_on_after_a_restart(tmp_path):
    assert written(ExportFileManager(tmp_path / "out" / "model", max_to_keep=2), 12)[-1] == "model-11"
    files = ExportFileManager(tmp_path / "out" / "model", max_to_keep=2)
    assert [name.rpartition("/")[2] for name in files.managed_files] == ["model-10", "model-11"]
    assert written(files, 1) == ["model-12"]
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["model-11", "model-12"]


def test_a_negative_number_keeps_all_and_0_is_refused(tmp_path):
    assert len(written(files := ExportFileManager(tmp_path / "m", max_to_keep=-1), 8)) == len(files.managed_files)
    with raises_problem(key="max_to_keep", received=0, remedy="-1 to keep all"):
        ExportFileManager(tmp_path / "m", max_to_keep=0)


def test_numbers_of_ones_own(tmp_path):
    steps = iter([np.int64(100), 20, 3])
    files = ExportFileManager(tmp_path / "m", 2, lambda: next(steps), "served")
    for _ in range(3):
        (path := tmp_path / files.next_name()).mkdir(parents=True)
        assert path.name == "served"
    (tmp_path / "m-x").mkdir()
    (tmp_path / "other-1").mkdir()
    (tmp_path / ".everstep-0123-m-7").mkdir()  # what a killed process left
    files.clean_up()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["m-100", "m-20", "m-x", "other-1"]
    assert files.managed_files == [str(tmp_path / "m-20" / "served"), str(tmp_path / "m-100" / "served")]


def test_integers_stay_integers():
    assert repr(scalars({"epoch": 2, "loss": np.float32(1.0)})) == "{'epoch': 2, 'loss': 1.0}"


def test_only_the_subdirectory_is_removed(tmp_path):
    """Files of others beside it are kept."""
    steps = iter([30, 200, 1000, 2000])
    files = ExportFileManager(tmp_path / "model", max_to_keep=2, next_id_fn=lambda: next(steps), subdirectory="served")
    for _ in range(3):
        Path(files.next_name()).mkdir(parents=True)
    (tmp_path / "model-30" / "notes.txt").write_text("mine")
    files.clean_up()
    assert files.managed_files == [str(tmp_path / f"model-{step}" / "served") for step in (200, 1000)]
    assert [path.name for path in (tmp_path / "model-30").iterdir()] == ["notes.txt"]
    Path(files.next_name()).mkdir(parents=True)
    files.clean_up()
    assert files.managed_files == [str(tmp_path / f"model-{step}" / "served") for step in (1000, 2000)]
