"""Which checkpoints are complete is told from their names and manifests, as the checkpointer sees them."""

from pathlib import Path

import numpy as np

from everstep.checkpoint import OrbaxCheckpointer, Retention, complete_checkpoints, newest_step, step_of


def test_what_the_checkpointer_would_restore_is_complete(tmp_path):
    folder = tmp_path / "checkpoints"
    checkpointer = OrbaxCheckpointer(folder, Retention(newest=9))
    for step in (0, 5, 10, 100):
        checkpointer.save(step, {"model/w": np.ones(1)}, {"step": step})
    checkpointer.close()
    (folder / "10").rename(folder / "10.replaced")  # a process was killed while it replaced that checkpoint
    (folder / "100" / "manifest.json").rename(folder / "100" / "other.json")
    for name in ("20", "05", "7.damaged", "notes", "10.replaced.1", ".everstep-abc-25", "٣"):
        (folder / name).mkdir()
        if name != "20":
            (folder / name / "manifest.json").touch()
    found = complete_checkpoints(folder)
    assert found == {0: folder / "0", 5: folder / "5", 10: folder / "10.replaced"}
    assert list(found) == OrbaxCheckpointer(folder, repair=False).steps() == [0, 5, 10]
    assert newest_step(tmp_path) == 10
    checkpointer = OrbaxCheckpointer(folder, repair=False)
    assert checkpointer.restore(10)[1]["step"] == 10


def test_a_new_checkpoint_counts_instead_of_the_one_that_it_replaces(tmp_path):
    for name in ("10.replaced", "10", "9.replaced"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "manifest.json").touch()
    assert complete_checkpoints(tmp_path) == {9: tmp_path / "9.replaced", 10: tmp_path / "10"}


def test_a_former_checkpoint_counts_while_the_new_one_is_not_complete(tmp_path):
    """As in a copy that was made meanwhile; what looks, what resumes and what saves again decide alike."""
    checkpointer = OrbaxCheckpointer(tmp_path)
    checkpointer.save(10, {"model/w": np.ones(1)}, {"saved": "first"})
    checkpointer.wait()
    (tmp_path / "10").rename(tmp_path / "10.replaced")
    (tmp_path / "10").mkdir()
    assert complete_checkpoints(tmp_path) == {10: tmp_path / "10.replaced"}
    assert checkpointer.steps() == [10]
    assert checkpointer.restore()[1]["saved"] == "first"
    checkpointer.save(10, {"model/w": np.ones(1)}, {"saved": "second"}, replace=True)
    checkpointer.close()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["10", "10.damaged"]
    assert OrbaxCheckpointer(tmp_path).restore()[1]["saved"] == "second"


def test_without_a_folder_there_is_none(tmp_path):
    assert newest_step(tmp_path) is None
    (tmp_path / "checkpoints").touch()
    assert newest_step(tmp_path) is None


def test_the_step_of_a_name():
    names = ("0", "12", "12.replaced", "012", "12.damaged", "best", "-1")
    assert [step_of(Path("x", name)) for name in names] == [0, 12, 12, None, None, None, None]
