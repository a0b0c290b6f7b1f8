import json
import math
import os

import pandas
import pytest

from everstep.testing.problems import raises_problem
from everstep.tracking.jsonl import JsonLinesTracker
from everstep.tracking.tracker import MultiTracker

from .disks import files_of_at_most


@pytest.fixture
def path(tmp_path):
    return tmp_path / "metrics.jsonl"


def lines(path):
    return [json.loads(line, parse_constant=pytest.fail) for line in path.read_text().splitlines()]


def steps(path):
    return [(record["step"], record["kind"]) for record in lines(path)]


def test_a_line_has_all_of_a_call(path):
    tracker = JsonLinesTracker(path, clock=lambda: 12.3456)
    tracker.start(0)
    tracker.log(10, {"loss": 0.5, "time": 2.0, "nested": {"a": 1.0}}, "train")
    expected = {"step": 10, "kind": "train", "time": 12.346, "loss": 0.5, "time_": 2.0, "nested|a": 1.0}
    assert lines(path) == [expected]  # without a flush: every line is there at once


def test_pandas_reads_every_number(path):
    tracker = JsonLinesTracker(path)
    tracker.start(0)
    tracker.log(1, {"loss": math.nan, "scale": math.inf}, "train")
    tracker.log(2, {"loss": 0.1, "scale": -math.inf}, "train")
    tracker.log(2, {"validation_loss": 0.2}, "validation")
    table = pandas.read_json(path, lines=True)
    assert table["loss"].tolist()[1] == 0.1
    assert table["scale"].tolist()[:2] == [math.inf, -math.inf]
    assert table["loss"].isna().tolist() == [True, False, True]
    assert table["validation_loss"].tolist()[2] == 0.2
    assert [record["loss"] for record in lines(path)[:2]] == ["NaN", 0.1]


def test_a_resumed_run_logs_each_step_once(path):
    first = JsonLinesTracker(path)
    first.start(0)
    for kind in ("train", "validation"):
        first.log(10, {"loss": 1.0}, kind)
    second = JsonLinesTracker(path)
    second.start(10)
    second.log(10, {"loss": 0.5}, "train")
    second.log(10, {"memory": 1.0}, "train")  # a second call for one step is another line
    second.log(10, {"loss": 0.25}, "validation")
    assert [(r["kind"], r.get("loss")) for r in lines(path)] == [("train", 0.5), ("train", None), ("validation", 0.25)]


def test_a_rollback_cuts_lines(path):
    tracker = JsonLinesTracker(path)
    tracker.start(0)
    for step in (10, 20, 30):
        tracker.log(step, {"loss": 1.0}, "train")
    tracker.start(10)
    tracker.log(20, {"loss": 2.0}, "train")
    assert [(record["step"], record["loss"]) for record in lines(path)] == [(10, 1.0), (20, 2.0)]


def test_a_line_that_a_kill_left_unfinished_is_cut(path):
    path.write_text('{"step": 10, "kind": "train", "time": 1.0, "loss": 0.5}\n{"step": 20, "ki')
    tracker = JsonLinesTracker(path)
    tracker.start(20)
    tracker.log(20, {"loss": 0.25}, "train")
    assert steps(path) == [(10, "train"), (20, "train")]


def test_joined_lines_are_skipped(path, caplog):
    good = '{"step": 10, "kind": "train", "time": 1.0, "loss": 0.5}'
    path.write_text(f"{good}\n{good[:20]}{good}\n")
    JsonLinesTracker(path).start(20)
    assert steps(path) == [(10, "train")]
    assert "skipped 1 lines that are not logs" in caplog.text


@pytest.mark.parametrize(
    "content", ["step,loss\n1,2\n", "[1, 2]\n", '{"loss": 1}\n', '{"step": "x", "kind": "train"}\n']
)
def test_a_foreign_file_is_refused_and_kept(path, content):
    path.write_text(content)
    with raises_problem(key="metrics.jsonl", reason="is not the log of a run", remedy="move it away"):
        JsonLinesTracker(path).start(0)
    assert path.read_text() == content


def test_a_folder_in_its_place_is_refused(path):
    path.mkdir()
    with raises_problem(key="metrics.jsonl", reason="cannot be read: Is a directory", remedy="move it away"):
        JsonLinesTracker(path).start(0)


def test_a_full_disk_loses_nothing_and_stops_nothing(path, caplog):
    tracker = MultiTracker([JsonLinesTracker(path)])
    tracker.start(0)
    tracker.log(1, {"loss": 1.0}, "train")
    with files_of_at_most(path.stat().st_size + 10):
        for step in (2, 3):
            tracker.log(step, {"loss": 1.0}, "train")
        assert steps(path) == [(1, "train")]
    tracker.flush()
    tracker.close()
    assert steps(path) == [(1, "train"), (2, "train"), (3, "train")]
    assert "can write again: nothing is missing" in caplog.messages[-1]


def test_a_cut_on_a_full_disk_is_done_later(path):
    tracker = JsonLinesTracker(path)
    tracker.start(0)
    for step in range(1, 40):
        tracker.log(step, {"loss": 1.0}, "train")
    again = JsonLinesTracker(path)
    with files_of_at_most(100):
        for call in (lambda: again.start(20), lambda: again.log(21, {"loss": 2.0}, "train")):
            with pytest.raises(OSError, match="File too large"):
                call()
    again.flush()
    assert [record["step"] for record in lines(path)] == list(range(1, 22))
    assert lines(path)[-1]["loss"] == 2.0


@pytest.mark.skipif(os.geteuid() == 0, reason="root writes anywhere")
def test_a_directory_that_cannot_be_written(path):
    path.parent.chmod(0o500)
    try:
        with pytest.raises(PermissionError):
            JsonLinesTracker(path).log(1, {"loss": 1.0}, "train")
    finally:
        path.parent.chmod(0o700)
