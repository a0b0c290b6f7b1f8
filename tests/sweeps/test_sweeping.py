"""Sweeps over functions: cheap trials, real processes, real kills."""

import os
import random
import re
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest

from everstep.errors import TrainingError, UsageError
from everstep.sweeps import study
from everstep.sweeps.definition import Definition
from everstep.sweeps.listing import read_sweep
from everstep.sweeps.space import create_space
from everstep.sweeps.study import SweepStudy, open_storage, storage_url
from everstep.sweeps.target import FunctionTarget
from everstep.testing.problems import raises_problem

pytestmark = pytest.mark.slow

X = {"x": {"low": 0.0, "high": 6.0}}


def test_a_sweep_finds_the_best_and_the_same_call_resumes_it(sweep, objectives):
    done = sweep(objectives.parabola, X, trials=2, sampler="random", workers=2)
    assert [(trial.number, trial.state) for trial in done.trials] == [(0, "complete"), (1, "complete")]
    assert done.best.value == min((trial.values["x"] - 3) ** 2 for trial in done.trials)
    assert done.best.directory == Path("sweep/trials").resolve() / str(done.best.number)
    before = [trial.values for trial in done.trials]
    more = sweep(objectives.parabola, X, trials=3, sampler="random")
    assert [trial.values for trial in more.trials][:2] == before
    assert len(more.trials) == 3


def test_a_function_of_a_notebook_runs_here(sweep):
    seen = []

    def objective(values, directory):
        seen.append(values["x"])
        return values["x"]

    done = sweep(objective, {"x": [3, 1, 2]}, sampler="grid")
    assert seen == [3, 1, 2]
    assert done.best.values == {"x": 1}
    sweep(objective, {"x": [3, 1, 2]}, sampler="grid")
    assert len(seen) == 3
    with pytest.raises(UsageError) as caught:
        sweep(objective, {"x": [3, 1, 2]}, sampler="grid", workers=2)
    assert caught.value.key == "workers"


def test_what_a_trial_tries_depends_on_its_number_alone(sweep):
    def tried(folder, **settings):
        done = sweep(lambda values, directory: values["x"], X, sampler="random", sweep_dir=folder, **settings)
        return [trial.values["x"] for trial in done.trials]

    assert tried("a", trials=6) == tried("b", trials=6)
    assert tried("c", trials=6, seed=1) != tried("a", trials=6)


def test_constraints_and_conditions_hold_in_every_trial(sweep):
    space = {
        "a": {"low": 1, "high": 4},
        "b": {"low": 1, "high": 4},
        "kind": ["deep", "flat"],
        "depth": {"low": 2, "high": 5, "when": {"kind": "deep"}},
        "constraints": ["a * b <= 6"],
    }
    done = sweep(lambda values, directory: values["a"], space, trials=8)
    assert len(done.trials) == 8
    assert all(trial.values["a"] * trial.values["b"] <= 6 for trial in done.trials)
    assert all(("depth" in trial.values) == (trial.values["kind"] == "deep") for trial in done.trials)


def test_several_metrics_have_a_front(sweep, objectives):
    def both(values, directory):
        return objectives.two(values, directory)

    done = sweep(both, {"x": [1, 5, 9]}, metric=["left", "right"], sampler="nsga2", trials=6)
    assert set(done.summary()["front"]) == {trial.number for trial in done.trials}  # none beats another
    assert [round(sum(trial.results)) for trial in done.trials] == [10] * 6


def test_failed_trials_say_why_and_end_the_sweep(sweep, objectives):
    with raises_problem(TrainingError, reason="no way"):
        sweep(objectives.broken, {"x": [1, 2]}, sampler="grid")


def test_failed_trials_are_tried_again_with_their_values(sweep, capsys):
    broken = {1, 2, 3}

    def objective(x, model_dir):
        assert not list(model_dir.iterdir())
        (model_dir / "called").touch()
        if x in broken:
            raise ValueError("no way")
        return x

    space = {"x": [1, 2, 3, 4]}
    with raises_problem(TrainingError, reason="all 3 trials failed", remedy="tries failed trials again"):
        sweep(objective, space, trials=3, sampler="grid")
    broken.remove(1)
    done = sweep(objective, space, trials=3, sampler="grid", verbose=True)
    assert [(trial.values["x"], trial.state) for trial in done.trials] == [(1, "complete"), (2, "fail"), (3, "fail")]
    assert "trying again: 3 trials that failed before" in capsys.readouterr().err
    broken.clear()
    done = sweep(objective, space, trials=4, sampler="grid")
    assert sorted((trial.values["x"], trial.state) for trial in done.trials) == [(x, "complete") for x in (1, 2, 3, 4)]
    done.require_complete()


def test_a_second_worker_does_not_repeat_what_fails_while_another_is_at_work(tmp_path):
    study = SweepStudy(tmp_path, definition(sampler="grid", trials=2), create=True)
    failed, other = study.claim(), study.claim()
    study.tell(failed, "FAIL")
    assert study.repeat_failed() == []
    other.release()  # as the kernel does, when a worker is dead
    assert study.repeat_failed() == [0]
    claims = [study.claim(), study.claim()]
    assert sorted(claim.values["x"] for claim in claims) == [1, 2]


def test_a_trial_that_fails_has_the_error_as_its_reason_and_the_sweep_is_not_complete(sweep, objectives):
    done = sweep(objectives.undefined_at_two, {"x": [1, 2]}, sampler="grid", workers=2)
    assert [trial.reason for trial in done.trials] == [None, "ZeroDivisionError: division by zero"]
    with pytest.raises(TrainingError) as caught:
        done.require_complete()
    assert caught.value.reason.startswith("1 of 2 trials failed; trial 1: ZeroDivisionError")
    assert "logs/1.log" in caught.value.remedy


def test_where_no_metric_is_named_that_of_the_first_trial_counts_and_is_told(sweep):
    def objective(values, directory):
        return {"loss": 0.0} if values["x"] == 3 else {"loss": 0.5, "validation_loss": values["x"]}

    done = sweep(objective, {"x": [2, 1, 3]}, sampler="grid", metric="")
    assert done.summary()["metrics"] == ["validation_loss"]
    assert done.best.values == {"x": 1}
    assert [trial.state for trial in done.trials] == ["complete", "complete", "fail"]
    assert "validation_loss" in done.trials[2].reason
    assert read_sweep(done.directory).line().endswith("best validation_loss=1 (trial 1)")


def test_a_metric_that_no_trial_logs_ends_the_sweep_with_those_that_it_does(sweep, objectives):
    with pytest.raises(UsageError) as caught:
        sweep(objectives.two, {"x": [1, 2]}, sampler="grid", metric="lfet")
    assert caught.value.key == "--metric"
    assert "did you mean 'left'" in caught.value.remedy
    assert "left, right" in caught.value.remedy


@pytest.mark.full
def test_pruned_trials_stop_at_once_and_their_steps_are_counted(sweep, objectives):
    """Four good trials, then a bad one: the median of the others is better from its first step on."""
    space = {"x": [1, 2, 3, 4, 90]}
    done = sweep(objectives.curve, space, sampler="grid", pruner="median", metric="validation_loss", workers=2)
    states = {trial.values["x"]: trial.state for trial in done.trials}
    assert states[90] == "pruned"
    (row,) = [row for row in done.summary()["trials"] if row["values"]["x"] == 90]
    assert row["steps"] < 30


# -- storages ----------------------------------------------------------------------------------------------------------


def definition(**changes) -> Definition:
    settings = {"metrics": ("value",), "modes": ("min",), "space": create_space({"x": [1, 2]}), **changes}
    target = settings.pop("target", FunctionTarget("m:f"))
    return Definition(target, settings.pop("space"), **settings)


@pytest.mark.parametrize(
    ("changes", "part"),
    [
        ({"space": create_space({"x": [1, 3]})}, "space"),
        ({"metrics": ("other",)}, "metrics"),
        ({"modes": ("max",)}, "modes"),
        ({"target": FunctionTarget("m:g")}, "target"),
    ],
)
def test_two_sweeps_on_one_storage(tmp_path, changes, part):
    url = f"sqlite:///{tmp_path / 'both.db'}"
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
    SweepStudy(tmp_path / "a", definition(storage=url), create=True)
    SweepStudy(tmp_path / "b", definition(storage=url, trials=50, sampler="random"), create=True)
    with pytest.raises(UsageError) as caught:
        SweepStudy(tmp_path / "b", definition(storage=url, **changes), create=True)
    assert caught.value.key == "--storage"
    assert f"another {part}" in caught.value.reason


def test_a_storage_that_another_version_wrote(tmp_path):
    import sqlite3

    url = storage_url(tmp_path, "")
    open_storage(url)
    with sqlite3.connect(tmp_path / "sweep.db") as database:
        database.execute("update alembic_version set version_num = 'v99.0.0.a'")
    database.close()
    with pytest.raises(UsageError) as caught:
        open_storage(url)
    assert (caught.value.key, caught.value.reason) == ("--storage", "was written by another version of Optuna")


@pytest.mark.parametrize("url", ["sqlite:////nowhere/at/all.db", "nosuch://host/db", "no url"])
def test_a_storage_that_cannot_be_opened(url):
    with pytest.raises(UsageError) as caught:
        open_storage(url)
    assert caught.value.key == "--storage"
    assert "\n" not in str(caught.value)


def test_a_journal_is_a_storage_too(sweep, tmp_path):
    url = f"journal://{tmp_path / 'sweep.log'}"
    done = sweep(lambda values, directory: values["x"], {"x": [2, 1]}, sampler="grid", storage=url)
    assert done.best.values == {"x": 1}
    assert (tmp_path / "sweep.log").is_file()


def test_opening_a_storage_leaves_logging_alone(tmp_path):
    code = f"""
        import logging
        mine = logging.getLogger("mine")
        from everstep.sweeps.study import open_storage
        open_storage("sqlite:///{tmp_path}/a.db")
        print(mine.disabled, logging.getLogger().handlers)
    """
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(code)], capture_output=True, text=True, timeout=120)
    assert done.stdout == "False []\n", done.stderr


# -- kills -------------------------------------------------------------------------------------------------------------


def test_a_trial_belongs_to_one_worker_and_is_taken_over_when_that_dies(tmp_path):
    first = SweepStudy(tmp_path, definition(sampler="grid", trials=2), create=True)
    second = SweepStudy(tmp_path, definition(sampler="grid", trials=2))
    one, two = first.claim(), second.claim()
    assert (one.number, two.number) == (0, 1)
    assert first.claim() is None
    one.release()  # as the kernel does, when a worker is dead
    again = second.claim()
    assert (again.number, again.values) == (0, one.values)
    second.tell(again, "COMPLETE", [1.0])
    assert not first.is_done()


def test_machines_without_a_shared_disk_share_the_trials(tmp_path, monkeypatch):
    """Two directories, one storage: the lock of a trial is free in the other directory, and yet it is taken."""
    url = f"sqlite:///{tmp_path / 'both.db'}"
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    wanted = definition(sampler="grid", trials=2, storage=url)
    first = SweepStudy(tmp_path / "a", wanted, create=True)
    second = SweepStudy(tmp_path / "b", wanted, create=True)
    one, two = first.claim(), second.claim()
    assert [claim.values for claim in (one, two)] == [{"x": 1}, {"x": 2}]
    assert first.claim() is second.claim() is None

    monkeypatch.setattr(study, "_STALE_SECONDS", -1.0)  # no heartbeat for long
    again = second.claim()
    assert (again.number, again.values) == (0, {"x": 1})
    monkeypatch.undo()
    one.release()
    assert first.claim() is None, "it has moved to the other machine"

    monkeypatch.setattr(first, "_place", lambda number: 3)  # the other machine has created the last one meanwhile
    monkeypatch.setattr(type(first), "wanted", 3)
    assert first.claim() is None
    assert [trial.number for trial in first.trials()] == [0, 1]


PROGRAM = """
import sys
sys.path.insert(0, ".")
from sweep_objectives import slow
from everstep.sweeps.sweeping import sweep
if __name__ == "__main__":
    space = {"x": {"low": 0.0, "high": 6.0}}
    sweep(slow, space, trials=int(sys.argv[1]), workers=2, sampler="random", sweep_dir="sweep")
"""


@pytest.mark.full
def test_killed_workers_and_trials_lose_nothing(objectives, tmp_path):
    """The sweep, a worker and a trial are killed once each; every trial is complete, once, with its own values."""
    (tmp_path / "program.py").write_text(PROGRAM)
    count, choice = 3, random.Random(0)

    def start():
        return subprocess.Popen([sys.executable, "program.py", str(count)], stderr=subprocess.PIPE)

    sweep = start()
    for kind in ("trial", "worker", "sweep"):
        victims = _wait_for(sweep, kind)
        os.kill(choice.choice(victims), signal.SIGKILL)
        if kind == "sweep":
            sweep.wait()
            sweep.stderr.close()
            sweep = start()
    _, err = sweep.communicate(timeout=240)
    assert sweep.returncode == 0, err.decode()
    study = SweepStudy(tmp_path / "sweep", Definition.load(tmp_path / "sweep"))
    trials = study.trials()
    assert [(trial.number, trial.state.name) for trial in trials] == [(n, "COMPLETE") for n in range(count)]
    assert all(trial.values == [(trial.params["x"] - 3) ** 2] for trial in trials)
    assert all((tmp_path / f"sweep/trials/{n}/count.txt").read_text() == "20" for n in range(count))


def _wait_for(sweep: subprocess.Popen, kind: str) -> list[int]:
    deadline = time.monotonic() + 120
    while not (found := _processes(sweep.pid, kind)):
        assert time.monotonic() < deadline
        assert sweep.poll() is None, sweep.stderr.read()
        time.sleep(0.02)
    return found


def _processes(sweep: int, kind: str) -> list[int]:
    """The processes of a sweep: itself, its workers, or those of its trials."""
    if kind == "sweep":
        return [sweep] if _children(sweep) else []
    workers = _children(sweep)
    return workers if kind == "worker" else [pid for worker in workers for pid in _children(worker)]


def _children(pid: int) -> list[int]:
    found = subprocess.run(["pgrep", "-P", str(pid)], capture_output=True, text=True).stdout
    return [int(line) for line in found.split()]


# ---- functions with parameters of their own --------------------------------------------------------------------------
def test_a_function_may_take_values_by_name(sweep, objectives):
    done = sweep(objectives.by_name, {"x": [1, 3], "penalty": [0, 1]})
    assert done.best.values == {"x": 3, "penalty": 0}
    assert (done.best.directory / "called.txt").read_text() == "3 0"


def test_a_function_of_a_notebook_may_take_values_by_name(sweep):
    seen = []

    def train(units, learning_rate, model_dir):
        seen.append((units, learning_rate, model_dir.is_dir()))
        return units * learning_rate

    done = sweep(train, {"units": [8, 16], "learning_rate": {"low": 0.1, "high": 0.2, "step": 0.1}})
    assert done.best.values == {"units": 8, "learning_rate": 0.1}
    assert sorted(seen) == [(8, 0.1, True), (8, 0.2, True), (16, 0.1, True), (16, 0.2, True)]


def test_a_function_may_take_any_values(sweep):
    assert sweep(lambda **values: values["x"], {"x": [2, 1]}).best.values == {"x": 1}


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (lambda: 1, "takes (): let it take the values by name, (x, y, model_dir), or as (values, directory)"),
        (lambda values: 1, "takes (values): let it take the values by name"),
        (lambda x, model_dir: 1, "has no parameter 'y', which varies"),
        (lambda x, yy: 1, "has no parameter 'y', which varies: did you mean 'yy'?"),
        (lambda x, y, epochs: 1, "has a parameter 'epochs', which does not vary: give it a default value"),
        (lambda x, y, path: 1, "has a parameter 'path', which does not vary"),
    ],
)
def test_a_function_that_cannot_be_called_is_refused_before_the_first_trial(sweep, tmp_path, function, message):
    with pytest.raises(UsageError) as caught:
        sweep(function, {"x": [1, 2], "y": [1, 2]})
    assert message in str(caught.value)
    assert not (tmp_path / "sweep").exists()


def test_a_parameter_that_only_some_trials_have_needs_a_default(sweep):
    space = {"kind": ["deep", "flat"], "depth": {"low": 2, "high": 3, "when": {"kind": "deep"}}}
    with pytest.raises(UsageError, match="has a parameter 'depth', which some trials do not have"):
        sweep(lambda kind, depth: 1, space)
    assert len(sweep(lambda kind, depth=0: depth, space).trials) == 3


# ---- what is usual ---------------------------------------------------------------------------------------------------
def test_a_space_that_the_trials_cover_is_tried_once_each(sweep):
    done = sweep(lambda x: x, {"x": [3, 1]})
    assert sorted(trial.values["x"] for trial in done.trials) == [1, 3]
    more = sweep(lambda x: x, {"x": [3, 1]}, trials=50)
    assert len(more.trials) == 2


def test_a_larger_space_is_searched_and_goes_on_as_it_began(sweep):
    space = {"x": list(range(12))}
    assert len(sweep(lambda x: x, space, trials=4).trials) == 4
    more = sweep(lambda x: x, space, trials=14)  # a grid would end after 12
    assert len(more.trials) == 14


def test_a_line_says_how_much_is_left(sweep, objectives, capsys):
    sweep(objectives.by_name, {"x": [1, 2, 3]}, verbose=True)
    lines = [line for line in capsys.readouterr().err.splitlines() if line.startswith("trial ")]
    assert re.search(r"\[\d of 3, about \d+ s left, best 4 \(trial 0\)\]$", lines[0])
    assert re.search(r"\[3 of 3, best ", lines[-1])
