import logging

import pytest

from everstep.errors import NOTHING, UsageError
from everstep.testing.problems import raises_problem
from everstep.tracking.plugins import GuardedTracker, TrackedRun, make_trackers
from everstep.tracking.tracker import MemoryTracker, MultiTracker

from .plugin_samples import install


@pytest.fixture
def run(tmp_path, monkeypatch):
    (tmp_path / "site").mkdir()
    (tmp_path / "run").mkdir()
    install(tmp_path / "site", monkeypatch)
    return TrackedRun(tmp_path / "run", "id", "mnist/x", "jax", 1, {"trainer": {"train_steps": 3}})


def files(run):
    return sorted(path.name for path in (run.directory / "folder").iterdir())


def test_an_installed_tracker_is_made_with_its_settings(run):
    (tracker,) = make_trackers({"folder": {"prefix": "mine"}}, run)
    tracker.start(0)
    tracker.log(3, {"loss": 0.5}, "train")
    tracker.log_images(3, "p", [], [])  # what it says nothing of is nothing to it
    tracker.close()
    assert files(run) == ["mine-3-train.json"]


@pytest.mark.parametrize(
    ("wanted", "received", "remedy"),
    [
        ({"foldr": {}}, "foldr", "did you mean 'folder'?"),
        ({"zzz": {}}, "zzz", "known: 'broken', 'folder', 'fussy', 'gone', 'no_tracker'"),
        ({"folder": {"colour": 1}}, {"colour": 1}, "check its settings, or remove it"),
        ({"fussy": {"password": "h0nter2x"}}, {"password": "h0nter2x"}, "check its settings, or remove it"),
        ({"no_tracker": {}}, NOTHING, "derive it from everstep.tracking.tracker.Tracker"),
        ({"gone": {}}, {}, "check its settings, or remove it"),
    ],
)
def test_a_tracker_that_cannot_be_created_is_reported_in_a_line(run, wanted, received, remedy):
    with pytest.raises(UsageError) as error:
        make_trackers(wanted, run)
    assert error.value.key == f"trainer.tracking.others.{next(iter(wanted))}"
    assert (error.value.received, error.value.remedy) == (received, remedy)
    assert "\n" not in str(error.value)
    assert "h0nter2x" not in str(error.value)


def test_an_error_of_the_tracker_has_the_key_of_its_setting(run):
    with raises_problem(key="trainer.tracking.others.fussy", reason="channel: received 'x', expected 'runs'"):
        make_trackers({"fussy": {"channel": "x"}}, run)


def test_no_code_comes_from_the_configuration(run):
    with raises_problem(
        key="trainer.tracking.others.my_trackers:FolderTracker",
        received="my_trackers:FolderTracker",
        reason="no tracker of that name is installed",
    ):
        make_trackers({"my_trackers:FolderTracker": {}}, run)


def test_a_bug_is_logged_and_disables_only_its_tracker(run, caplog):
    memory = MemoryTracker()
    tracker = MultiTracker([*make_trackers({"broken": {}}, run), memory])
    tracker.start(0)
    for step in (4, 8, 12):
        tracker.log(step, {"loss": 1.0}, "train")
    tracker.flush()
    tracker.close()
    assert [point.step for point in memory.points] == [4, 8, 12]
    assert files(run) == ["point-4-train.json"]
    failure, end = caplog.records
    assert failure.getMessage() == "tracker 'broken' failed in log at step 8: it is disabled, training continues"
    assert failure.levelno == logging.ERROR
    assert "ZeroDivisionError: a bug" in caplog.text  # with its traceback
    assert end.getMessage() == "tracker 'broken' has recorded nothing since step 8, where its log failed"


def test_a_network_that_fails_is_no_bug(caplog):
    class Unlucky(MemoryTracker):
        def log(self, step, logs, kind):
            if step == 1:
                raise ConnectionError("no route")
            super().log(step, logs, kind)

    inner = Unlucky()
    tracker = MultiTracker([GuardedTracker("unlucky", inner)])
    for step in (1, 2):
        tracker.log(step, {"loss": 1.0}, "train")
    assert [point.step for point in inner.points] == [2]
    assert "will retry" in caplog.text


def test_a_usage_error_at_the_start_stops_the_run():
    class Refusing(MemoryTracker):
        def start(self, step):
            raise UsageError("no such channel")

    with raises_problem(reason="no such channel"):
        MultiTracker([GuardedTracker("refusing", Refusing())]).start(0)
