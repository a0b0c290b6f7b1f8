import subprocess
import sys

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from everstep.tracking.tensorboard import TensorBoardTracker

from .disks import files_of_at_most

pytestmark = pytest.mark.slow


def scalars(directory, tag="loss"):
    return [(event.step, event.value) for event in EventAccumulator(str(directory)).Reload().Scalars(tag)]


def test_files_appear_with_the_first_number_only(tmp_path):
    tracker = TensorBoardTracker(tmp_path, validation_subdir="val")
    tracker.start(100)
    assert not list(tmp_path.iterdir())
    tracker.log(101, {"loss": 1.0}, "validation")
    tracker.close()
    assert [path.name for path in tmp_path.iterdir()] == ["val"]
    assert scalars(tmp_path / "val") == [(101, 1.0)]


def test_readable_while_training_after_a_few_seconds(tmp_path):
    now = 0.0
    tracker = TensorBoardTracker(tmp_path, clock=lambda: now)
    tracker.start(0)
    tracker.log(1, {"loss": 1.0}, "train")
    (file,) = (tmp_path / "train").iterdir()
    assert file.stat().st_size == 0
    now = 10.0
    tracker.log(2, {"loss": 0.5}, "train")
    assert scalars(tmp_path / "train") == [(1, 1.0), (2, 0.5)]
    tracker.close()


def test_a_record_torn_by_a_kill_does_not_hide_the_next_attempt(tmp_path):
    tracker = TensorBoardTracker(tmp_path)
    tracker.start(0)
    for step in (1, 2, 3):
        tracker.log(step, {"loss": 1.0}, "train")
    tracker.close()
    (file,) = (tmp_path / "train").iterdir()
    file.write_bytes(file.read_bytes()[:-5])
    tracker.start(1)
    tracker.log(2, {"loss": 0.5}, "train")
    tracker.close()
    assert scalars(tmp_path / "train") == [(1, 1.0), (2, 0.5)]


def test_a_number_beyond_float32_is_shown_as_infinite(tmp_path):
    tracker = TensorBoardTracker(tmp_path)
    tracker.log(1, {"loss": 1e300}, "train")
    tracker.close()
    assert scalars(tmp_path / "train") == [(1, float("inf"))]


def test_writing_never_imports_tensorflow(tmp_path):
    code = f"""
import sys
from everstep.tracking.tensorboard import TensorBoardTracker
tracker = TensorBoardTracker({str(tmp_path)!r})
tracker.start(5)
tracker.log(6, {{"loss": 1.0}}, "train")
tracker.flush()
tracker.close()
print(*{{"tensorflow", "keras", "jax"}} & set(sys.modules))
"""
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == ""
    assert scalars(tmp_path / "train") == [(6, 1.0)]


def test_a_full_disk_delays_events(tmp_path):
    tracker = TensorBoardTracker(tmp_path)
    tracker.start(0)
    tracker.log(1, {"loss": 1.0}, "train")
    tracker.flush()
    (file,) = (tmp_path / "train").iterdir()
    size = file.stat().st_size
    with files_of_at_most(size + 10):
        for step in range(2, 400):  # far more than any buffer of a file holds
            tracker.log(step, {"loss": 1.0 / step, "another": 1.0}, "train")
        tracker.log(399, {"loss": 5.0}, "validation")
        with pytest.raises(OSError, match="File too large"):
            tracker.flush()
        assert file.stat().st_size == size
        with pytest.raises(OSError, match="File too large"):
            tracker.flush()
    tracker.close()
    assert [step for step, _ in scalars(tmp_path / "train")] == list(range(1, 400))
    assert scalars(tmp_path / "validation") == [(399, 5.0)]


def test_a_folder_that_cannot_be_created_is_retried(tmp_path):
    (tmp_path / "train").write_text("in the way")
    tracker = TensorBoardTracker(tmp_path)
    tracker.start(0)
    with pytest.raises(FileExistsError):
        tracker.log(1, {"loss": 1.0}, "train")
    (tmp_path / "train").unlink()
    tracker.log(2, {"loss": 0.5}, "train")
    tracker.close()
    assert scalars(tmp_path / "train") == [(1, 1.0), (2, 0.5)]


def test_a_rollback_drops_later_steps(tmp_path):
    tracker = TensorBoardTracker(tmp_path)
    tracker.start(0)
    for step in (1, 2, 3):
        tracker.log(step, {"loss": 1.0}, "train")
    tracker.start(1)
    tracker.log(2, {"loss": 0.5}, "train")
    tracker.start(0)
    tracker.log(1, {"loss": 0.25}, "train")
    tracker.close()
    assert scalars(tmp_path / "train") == [(1, 0.25)]
