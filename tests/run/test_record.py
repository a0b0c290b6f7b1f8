import datetime
import json
import socket

import numpy as np
import pytest

from everstep.checkpoint.digests import weights_digest
from everstep.run import record
from everstep.run.environments import read_requirements
from everstep.run.record import Run, find_runs, read
from everstep.testing.problems import raises_problem

KEYS = (
    "id experiment name tags notes backend mode status step epoch train_steps epochs steps_per_epoch stopped_early "
    "final_weights attempts metrics digest weights_digest states code environment data initial_weights cost"
)


class Clock:
    """A minute passes with every look at it."""

    def __init__(self):
        self.now = datetime.datetime(2030, 1, 1, tzinfo=datetime.UTC)

    def __call__(self):
        self.now += datetime.timedelta(minutes=1)
        return self.now


@pytest.fixture
def directory(tmp_path):
    return tmp_path / "runs" / "a"


def opened(directory):
    return Run.open(directory, "mnist/mlp", "jax", Clock())


def test_opening_creates_nothing(directory):
    run = opened(directory)
    assert len(run.id) == 32
    assert not directory.parent.exists()


def test_a_run_from_begin_to_finish(directory):
    run = opened(directory)
    run.begin(0, "task: {}\n", data={"x": {"shape": [2]}})
    assert (directory / "config.yaml").read_text() == "task: {}\n"
    assert read(directory)["status"] == "running"
    run.update(100, 1, {"train": {"loss": 0.5}})
    run.update(100, 1, {"validation": {"loss": float("nan")}})
    run.finish("finished", "train_steps reached", "d1", "d2")
    record = json.loads((directory / "run.json").read_text())
    assert list(record) == KEYS.split()
    assert record["metrics"] == {"train": {"loss": 0.5}, "validation": {"loss": "NaN"}}
    assert (record["status"], record["step"], record["epoch"]) == ("finished", 100, 1)
    assert (record["digest"], record["weights_digest"]) == ("d1", "d2")
    assert record["data"] == {"x": {"shape": [2]}}
    assert set(record["code"]) == {"commit", "dirty", "changes", "sources", "files"}
    assert record["environment"]["packages"]["keras"]
    assert record["attempts"] == [
        {
            "started": "2030-01-01T00:01:00.000+00:00",
            "first_step": None,
            "ended": "2030-01-01T00:02:00.000+00:00",
            "from_step": 0,
            "to_step": 100,
            "saved_step": 0,
            "steps_again": 0,
            "reason": "train_steps reached",
            "processes": 1,
            "hosts": [socket.gethostname()],
            "changes": [],
            "code": {name: value for name, value in record["code"].items() if name != "files"},
        }
    ]


def test_a_checkpoint_that_is_written_after_the_attempt_has_failed_is_recorded(directory):
    run = opened(directory)
    run.begin(0, "")
    run.saved(10, {})
    run.update(30, 0)
    run.finish("failed", "RuntimeError")
    assert read(directory)["attempts"][0]["saved_step"] == 10
    run.saved(20, {})
    assert read(directory)["attempts"][0]["saved_step"] == 20


def test_an_attempt_begins_with_one_write_of_the_record(directory, monkeypatch):
    written = []
    monkeypatch.setattr(Run, "_text", lambda run: written.append(dict(run.record)) or "{}")
    run = opened(directory)
    extra = {"mode": "train", "data": {"folder": {}}}
    run.begin(0, "", data={"x": {}}, devices={"mesh": {"data": 1}}, engine={"engine": {"loop": "while"}}, extra=extra)
    (record,) = written
    assert (record["mode"], record["data"]) == ("train", {"x": {}, "folder": {}})
    assert record["attempts"][0]["mesh"] == {"data": 1}
    assert record["environment"]["engine"] == {"loop": "while"}


def test_states_are_noted_until_they_are_done_again(directory):
    states = [{"model/w": np.float32([step])} for step in range(4)]
    run = opened(directory)
    run.begin(0, "")
    for step, state in enumerate(states):
        run.saved(10 * step, state)
    run.update(30, 0)
    assert read(directory)["states"] == {str(10 * step): weights_digest(state) for step, state in enumerate(states)}
    again = opened(directory)
    again.begin(10, "")
    assert list(read(directory)["states"]) == ["0", "10"]
    again.saved(10, states[3])
    assert again.record["states"]["10"] == weights_digest(states[3])


def test_every_other_state_is_dropped_if_there_are_many(directory):
    run = opened(directory)
    run.begin(0, "")
    for step in range(record.MAX_STATES + 2):
        run.saved(step, {})
    noted = [int(step) for step in run.record["states"]]
    assert len(noted) < record.MAX_STATES
    assert noted[:3] == [0, 2, 4]
    assert noted[-1] == record.MAX_STATES + 1


def test_packages_are_listed(directory):
    opened(directory).begin(0, "")
    assert "numpy==" in (directory / "requirements.txt").read_text()
    assert read_requirements(directory)["numpy"] == np.__version__


def test_attempts_add_up_and_one_without_an_end_was_killed(directory):
    first = opened(directory)
    first.begin(0, "")
    first.update(50, 0)
    second = opened(directory)
    second.begin(40, "")
    second.finish("interrupted", "SIGTERM")
    third = opened(directory)
    third.begin(40, "")
    third.finish("finished", "done", "d", "w")
    assert third.id == second.id == first.id
    assert [(a["from_step"], a["to_step"], a["reason"]) for a in read(directory)["attempts"]] == [
        (0, 50, "killed"),
        (40, 40, "SIGTERM"),
        (40, 40, "done"),
    ]


def test_an_attempt_records_changes(directory):
    opened(directory).begin(0, "")
    opened(directory).begin(40, "", changes=[{"key": "trainer.train_steps", "old": 60, "new": 120}])
    changes = [attempt["changes"] for attempt in read(directory)["attempts"]]
    assert changes == [[], [{"key": "trainer.train_steps", "old": 60, "new": 120}]]


def test_a_new_attempt_forgets_the_old_digest(directory):
    first = opened(directory)
    first.begin(0, "")
    first.finish("finished", "done", "d", "w")
    opened(directory).begin(0, "")
    record = read(directory)
    assert (record["digest"], record["weights_digest"]) == (None, None)


def test_discard_removes_what_this_attempt_created(directory):
    run = opened(directory)
    assert not run.discard()
    run.begin(0, "")
    (directory / "checkpoints" / "0").mkdir(parents=True)
    assert run.discard()
    assert not directory.exists()
    assert not directory.parent.exists()  # the attempt created it too


def test_discard_keeps_a_directory_that_was_there(directory):
    directory.mkdir(parents=True)
    run = opened(directory)
    run.begin(0, "")
    assert not run.discard()
    assert directory.exists()


def test_discard_keeps_work(directory):
    run = opened(directory)
    run.begin(0, "")
    run.update(1, 0)
    assert not run.discard()


def test_discard_keeps_unreported_checkpoints(directory):
    run = opened(directory)
    run.begin(0, "")
    (directory / "checkpoints" / "10").mkdir(parents=True)
    (directory / "checkpoints" / "10" / "manifest.json").touch()
    assert not run.discard()


def test_read_names_what_is_wrong(tmp_path):
    with raises_problem(reason="is not a run directory"):
        read(tmp_path)
    (tmp_path / "run.json").write_text("[]")
    with raises_problem(reason="is not the record of a run"):
        read(tmp_path)


def test_opening_a_damaged_record_is_an_error_not_a_new_run(tmp_path):
    (tmp_path / "run.json").write_text('{"id": ')
    with raises_problem(key=str(tmp_path / "run.json"), reason="not valid JSON"):
        opened(tmp_path)


def test_begin_where_nothing_can_be_written(tmp_path):
    (tmp_path / "file").touch()
    with raises_problem(reason="is a file"):
        opened(tmp_path / "file" / "x").begin(0, "")


def test_find_runs_lists_all_and_hides_none(tmp_path):
    for name in ("b", "deep/er/a"):
        opened(tmp_path / name).begin(0, "")
    (tmp_path / "c").mkdir()
    (tmp_path / "c" / "run.json").write_text("{")
    found = find_runs(tmp_path)
    assert [str(path.relative_to(tmp_path)) for path, _ in found] == ["b", "c", "deep/er/a"]
    assert [record["status"] for _, record in found] == ["running", "unreadable", "running"]
    assert find_runs(tmp_path / "b") == [(tmp_path / "b", read(tmp_path / "b"))]
    assert find_runs(tmp_path / "nowhere") == []


@pytest.mark.parametrize("name", ["config.yaml", "requirements.txt", "history.csv"])
def test_files_that_no_run_has_written_are_left_alone(tmp_path, name):
    (tmp_path / name).write_text("mine")
    with raises_problem(key="model_dir", reason=f"'{name}' in it is not a run's"):
        Run.open(tmp_path, "mnist/mlp", "jax").begin(0, "a: 1")
    assert [path.name for path in tmp_path.iterdir()] == [name]
    assert (tmp_path / name).read_text() == "mine"


def test_a_directory_with_other_files_is_a_warning(tmp_path, caplog):
    """They are kept; hidden files, those of a submission and what `serialize_config` writes before do not count; later
    attempts do not warn.
    """
    for name in (".lock", "notes.txt", "thesis.tex", "params.yaml"):
        (tmp_path / name).write_text("mine")
    (tmp_path / "submissions").mkdir()
    with caplog.at_level("WARNING"):
        Run.open(tmp_path, "line", "jax").begin(0, "")
        Run.open(tmp_path, "line", "jax").begin(0, "")
    [warning] = [message for message in caplog.messages if "other files" in message]
    assert f"{str(tmp_path)!r} contains other files (notes.txt, thesis.tex): they are kept" in warning
    assert (tmp_path / "notes.txt").read_text() == "mine"
