import contextlib
import math

import pytest

from everstep.testing.problems import raises_problem
from everstep.tracking.history import HistoryReader, HistoryTracker

from .disks import files_of_at_most


@pytest.fixture
def path(tmp_path):
    return tmp_path / "history.csv"


def started_tracker(path, step=0):
    tracker = HistoryTracker(path)
    tracker.start(step)
    return tracker


def test_columns_in_order_of_appearance_and_floats_exact(path):
    tracker = started_tracker(path)
    tracker.log(10, {"loss": 1 / 3, "lr": 1e-05}, "train")
    tracker.log(20, {"loss": math.nan}, "train")
    tracker.log(20, {"validation_loss": 2.0}, "validation")
    tracker.close()
    assert path.read_text() == ("step,loss,lr,validation_loss\n10,0.3333333333333333,1e-05,\n20,nan,,2.0\n")


def test_a_row_is_written_when_the_next_step_is_logged(path):
    tracker = started_tracker(path)
    tracker.log(1, {"loss": 1.0}, "train")
    assert not path.exists()
    tracker.log(2, {"loss": 2.0}, "train")
    assert path.read_text() == "step,loss\n1,1.0\n"


def test_a_late_number_joins_a_row_already_written(path):
    tracker = started_tracker(path)
    for step in (1, 2):
        tracker.log(step, {"loss": 1.0}, "train")
    tracker.flush()
    tracker.log(1, {"late": 5.0}, "validation")
    tracker.close()
    assert path.read_text() == "step,loss,late\n1,1.0,5.0\n2,1.0,\n"


def test_one_name_in_training_and_validation_gets_two_columns(path):
    tracker = started_tracker(path)
    tracker.log(0, {"accuracy": 0.1}, "validation")
    tracker.flush()
    tracker.log(10, {"accuracy": 0.5}, "train")
    tracker.log(10, {"accuracy": 0.4}, "validation")
    tracker.close()
    again = started_tracker(path, 10)
    again.log(20, {"accuracy": 0.3}, "validation")
    again.log(20, {"accuracy": 0.6}, "train")
    again.close()
    assert path.read_text() == "step,validation_accuracy,accuracy\n0,0.1,\n10,0.4,0.5\n20,0.3,0.6\n"


@pytest.mark.parametrize("torn", ["3", "30", "30,1", "30,1.0"])
def test_a_line_torn_by_a_kill_is_cut(path, torn):
    path.write_text(f"step,loss\n10,1.0\n20,1.0\n{torn}")
    tracker = started_tracker(path, 20)
    tracker.log(30, {"loss": 0.5}, "train")
    tracker.close()
    assert path.read_text() == "step,loss\n10,1.0\n20,1.0\n30,0.5\n"


def test_killed_anywhere_each_step_has_exactly_one_row(path):
    for first, last in ((0, 40), (20, 50), (30, 30), (30, 60), (60, 100)):
        tracker = started_tracker(path, first)
        for step in range(first + 10, last + 10, 10):
            tracker.log(step, {"loss": step / 7}, "train")
        tracker.flush()
    steps = [int(line.split(",")[0]) for line in path.read_text().splitlines()[1:]]
    assert steps == list(range(10, 110, 10))


def test_a_step_without_numbers_has_a_row(path):
    tracker = started_tracker(path)
    tracker.log(1, {}, "train")
    tracker.log(2, {}, "train")
    tracker.close()
    assert path.read_text() == "step\n1\n2\n"


def test_names_with_commas_survive(path):
    tracker = started_tracker(path)
    tracker.log(1, {'iou, "car"': 0.5}, "validation")
    tracker.close()
    tracker = started_tracker(path, 1)
    tracker.log(2, {'iou, "car"': 0.25}, "validation")
    tracker.close()
    assert path.read_text() == 'step,"iou, ""car"""\n1,0.5\n2,0.25\n'


def test_a_foreign_file_is_refused_and_kept(path):
    path.write_text("epoch,loss\n1,2\n")
    with raises_problem(key="history.csv", reason="is not the history of a run"):
        started_tracker(path)
    assert path.read_text() == "epoch,loss\n1,2\n"


def test_a_row_that_was_written_in_part_is_written_later(path):
    tracker = started_tracker(path)
    tracker.log(1, {"loss": 1.0}, "train")
    tracker.flush()
    tracker.log(2, {"loss": 2.0}, "train")
    with files_of_at_most(path.stat().st_size + 3):
        with pytest.raises(OSError, match="File too large"):
            tracker.flush()
        assert path.read_text() == "step,loss\n1,1.0\n"
        with pytest.raises(OSError, match="File too large"):
            tracker.log(3, {"loss": 3.0}, "train")
    tracker.flush()
    assert path.read_text() == "step,loss\n1,1.0\n2,2.0\n3,3.0\n"


def test_new_columns_wait_for_a_full_disk(path):
    tracker = started_tracker(path)
    tracker.log(1, {"accuracy": 0.1}, "validation")
    tracker.flush()
    with files_of_at_most(4):
        for step in (2, 3):
            with pytest.raises(OSError, match="File too large"):
                tracker.log(step, {"accuracy": step / 2, "loss": 1.0}, "train")
        with pytest.raises(OSError, match="File too large"):
            tracker.flush()
    tracker.log(4, {"accuracy": 2.0}, "train")
    tracker.log(4, {"accuracy": 0.4}, "validation")
    tracker.close()
    assert path.read_text() == ("step,validation_accuracy,accuracy,loss\n1,0.1,,\n2,,1.0,1.0\n3,,1.5,1.0\n4,0.4,2.0,\n")


def test_a_rollback_on_a_full_disk(path):
    tracker = started_tracker(path)
    for step in (1, 2, 3):
        tracker.log(step, {"loss": 1.0}, "train")
    tracker.flush()
    with files_of_at_most(4):
        for step in (4, 5):
            with contextlib.suppress(OSError):
                tracker.log(step, {"loss": 1.0}, "train")
        with pytest.raises(OSError, match="File too large"):
            tracker.start(2)
    tracker.log(5, {"loss": 0.5}, "train")
    tracker.close()
    assert path.read_text() == "step,loss\n1,1.0\n2,1.0\n5,0.5\n"


def test_broken_rows_are_skipped_with_a_warning(path, caplog):
    path.write_text("step,loss\n10,1.0\n20,1.030,2.0\n,7.0\nx,1.0\n40,1.0,5,6\n50,0.5\n")
    tracker = started_tracker(path, 50)
    tracker.log(60, {"loss": 0.25}, "train")
    tracker.close()
    assert path.read_text() == "step,loss\n10,1.0\n50,0.5\n60,0.25\n"
    (warning,) = caplog.messages
    assert "skipped 4 lines that are not rows of a history" in warning


def test_a_file_that_cannot_be_read_is_named(path):
    path.mkdir()
    with raises_problem(key="history.csv", reason="cannot be read: Is a directory"):
        started_tracker(path)


def test_a_reader_returns_only_what_is_new(tmp_path):
    tracker, reader = HistoryTracker(tmp_path / "history.csv"), HistoryReader(tmp_path / "history.csv")
    tracker.start(0)
    tracker.log(1, {"loss": 0.5}, "train")
    tracker.flush()
    assert reader.read() == (True, [(1, {"loss": "0.5"})])
    assert reader.read() == (False, [])
    tracker.log(2, {"loss": 0.25}, "train")
    tracker.flush()
    with open(tmp_path / "history.csv", "a", encoding="utf-8") as file:
        file.write("3,0.1")  # not whole yet
    assert reader.read() == (False, [(2, {"loss": "0.25"})])
    HistoryTracker(tmp_path / "history.csv").start(1)  # a resume cuts the file
    assert reader.read() == (True, [(1, {"loss": "0.5"})])
