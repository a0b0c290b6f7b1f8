"""Damaged, foreign and newer checkpoints: detected, reported, set aside, and never loaded."""

import json
import os
import random
import shutil
from pathlib import Path

import numpy as np
import pytest

from everstep.checkpoint import manifest
from everstep.checkpoint.checkpointer import SaveError
from everstep.checkpoint.orbax import OrbaxCheckpointer
from everstep.checkpoint.retention import Retention
from everstep.errors import TrainingError
from everstep.testing.problems import raises_problem


def state(step: int) -> dict[str, np.ndarray]:
    return {f"model/{i}": np.random.default_rng([step, i]).random(2000, dtype="float32") for i in range(3)}


@pytest.fixture
def saved_checkpoints(tmp_path: Path) -> Path:
    """Checkpoints of the steps 10, 20 and 30 of one run."""
    checkpointer = OrbaxCheckpointer(tmp_path / "checkpoints", run="mine")
    for step in (10, 20, 30):
        checkpointer.save(step, state(step), {"step": step})
    checkpointer.close()
    return tmp_path / "checkpoints"


def restored(directory: Path, **kwargs) -> int:
    checkpointer = OrbaxCheckpointer(directory, run="mine", **kwargs)
    found, meta = checkpointer.restore()
    checkpointer.close()
    expected = state(meta["step"])
    assert all(np.array_equal(found[key], expected[key]) for key in expected)
    return meta["step"]


def files(checkpoint: Path) -> list[Path]:
    return sorted(path for path in checkpoint.rglob("*") if path.is_file())


def flip(path: Path, choice: random.Random) -> None:
    data = bytearray(path.read_bytes())
    position = choice.randrange(len(data))
    data[position] ^= 1 << choice.randrange(8)
    path.write_bytes(data)


def damage(checkpoint: Path, kind: str, seed: int) -> None:
    choice = random.Random(seed)
    path = choice.choice([path for path in files(checkpoint) if path.stat().st_size])
    if kind == "flip":
        flip(path, choice)
    elif kind == "truncate":
        path.write_bytes(path.read_bytes()[: choice.randrange(path.stat().st_size)])
    elif kind == "empty":
        path.write_bytes(b"")
    elif kind == "missing":
        path.unlink()
    elif kind == "extra":
        (path.parent / "stray").write_text("x")


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("kind", ["flip", "truncate", "empty", "missing", "extra"])
def test_every_damage_is_detected_and_the_one_before_is_used(saved_checkpoints, kind, seed, caplog):
    damage(saved_checkpoints / "30", kind, seed)
    before = {path.relative_to(saved_checkpoints / "30"): path.read_bytes() for path in files(saved_checkpoints / "30")}
    assert restored(saved_checkpoints) == 20
    assert "30 is damaged" in caplog.text
    aside = saved_checkpoints / "30.damaged"
    assert {path.relative_to(aside): path.read_bytes() for path in files(aside)} == before
    assert restored(saved_checkpoints) == 20


def test_two_damaged_checkpoints_in_a_row(saved_checkpoints):
    damage(saved_checkpoints / "30", "flip", 0)
    damage(saved_checkpoints / "20", "missing", 0)
    assert restored(saved_checkpoints) == 10
    assert sorted(os.listdir(saved_checkpoints)) == ["10", "20.damaged", "30.damaged"]


def test_no_start_from_scratch_if_all_are_damaged(saved_checkpoints):
    for step in (10, 20, 30):
        damage(saved_checkpoints / str(step), "flip", step)
    with raises_problem(
        TrainingError, reason="contains no usable checkpoint: 30 .*20 .*10", remedy="restore one from a copy"
    ):
        restored(saved_checkpoints)
    with raises_problem(TrainingError, reason="10.damaged, 20.damaged, 30.damaged"):
        restored(saved_checkpoints)
    checkpointer = OrbaxCheckpointer(saved_checkpoints)
    with raises_problem(TrainingError, remedy="restore one from a copy"):
        checkpointer.raise_if_all_damaged()
    checkpointer.close()


def test_a_reader_moves_nothing(saved_checkpoints):
    damage(saved_checkpoints / "30", "flip", 0)
    assert restored(saved_checkpoints, repair=False) == 20
    assert sorted(os.listdir(saved_checkpoints)) == ["10", "20", "30"]


def test_a_requested_step_is_not_replaced_by_another(saved_checkpoints):
    damage(saved_checkpoints / "20", "flip", 0)
    checkpointer = OrbaxCheckpointer(saved_checkpoints)
    with raises_problem(TrainingError, reason="20' is damaged", remedy="choose another step"):
        checkpointer.restore(20)
    checkpointer.close()


def test_a_checkpoint_of_another_run_is_refused(saved_checkpoints):
    checkpointer = OrbaxCheckpointer(saved_checkpoints, run="yours")
    with raises_problem(reason=r"30' was written by another run \(mine, this one is yours\)", remedy="move it away"):
        checkpointer.restore()
    checkpointer.close()
    assert sorted(os.listdir(saved_checkpoints)) == ["10", "20", "30"]


def test_a_checkpoint_of_a_newer_program_is_refused(saved_checkpoints):
    path = saved_checkpoints / "30" / manifest.NAME
    document = json.loads(path.read_text()) | {"format": 99, "version": "9.9"}
    document.pop("digest")
    path.write_text(manifest._text(document | {"digest": manifest._digest(document)}))
    with raises_problem(reason=r"written by a newer Everstep \(9.9, format 99; this one reads up to 3\)"):
        restored(saved_checkpoints)
    assert sorted(os.listdir(saved_checkpoints)) == ["10", "20", "30"]


def test_metrics_that_are_not_finite_are_left_out(tmp_path):
    checkpointer = OrbaxCheckpointer(tmp_path / "checkpoints", run="mine")
    metrics = {"a": float("nan"), "b": float("inf"), "c": np.float32(0.5), "d": "text"}
    checkpointer.save(10, state(10), {"step": 10}, metrics)
    checkpointer.close()
    assert restored(tmp_path / "checkpoints") == 10
    assert manifest.read(tmp_path / "checkpoints" / "10").metrics == {"c": 0.5}


def test_a_renamed_checkpoint_is_damaged(saved_checkpoints):
    (saved_checkpoints / "30").rename(saved_checkpoints / "40")
    assert restored(saved_checkpoints) == 20


def test_files_and_checkpoints_of_others_are_kept(saved_checkpoints):
    shutil.copytree(saved_checkpoints / "10", saved_checkpoints / "10-copy")
    other = OrbaxCheckpointer(saved_checkpoints, Retention(2), run="yours")
    (saved_checkpoints / "5").mkdir()
    (saved_checkpoints / "note.txt").write_text("keep me")
    for step in (40, 50, 60, 70):
        other.save(step, state(step), {})
    other.close()
    assert sorted(os.listdir(saved_checkpoints)) == ["10", "10-copy", "20", "30", "5", "60", "70", "note.txt"]


def test_a_failed_save_is_raised_by_the_next_call_and_affects_nothing_else(saved_checkpoints):
    checkpointer = OrbaxCheckpointer(saved_checkpoints, run="mine")
    checkpointer.save(40, state(40), {"bad": object()})
    with raises_problem(SaveError, reason="step 40 could not be saved in .*; the checkpoints before it are untouched"):
        checkpointer.save(50, state(50), {"step": 50})
    checkpointer.save(50, state(50), {"step": 50})
    checkpointer.close()
    assert restored(saved_checkpoints) == 50
    assert sorted(os.listdir(saved_checkpoints)) == ["10", "20", "30", "50"]


def test_too_little_memory_is_no_damage(saved_checkpoints, monkeypatch):
    def no_memory(*arguments, **settings):
        raise MemoryError("4 TiB wanted")

    monkeypatch.setattr("orbax.checkpoint.Checkpointer.restore", no_memory)
    with raises_problem(
        TrainingError, reason="30' cannot be read: MemoryError: 4 TiB wanted", remedy="it is left as it is"
    ):
        restored(saved_checkpoints)
    assert sorted(path.name for path in saved_checkpoints.iterdir()) == ["10", "20", "30"]


@pytest.mark.skipif(os.geteuid() == 0, reason="permissions do not stop root")
def test_missing_permission_is_no_damage(saved_checkpoints):
    (saved_checkpoints / "30" / "manifest.json").chmod(0)
    with raises_problem(TrainingError, reason="30' cannot be read: PermissionError"):
        restored(saved_checkpoints)
    assert sorted(path.name for path in saved_checkpoints.iterdir()) == ["10", "20", "30"]


@pytest.mark.parametrize("name", ["0040", "²", "40.5", "-3", "notes"])
def test_directories_with_other_names_are_ignored(saved_checkpoints, name):
    (saved_checkpoints / name).mkdir()
    assert restored(saved_checkpoints) == 30


def test_hidden_files_are_no_damage(saved_checkpoints):
    (saved_checkpoints / "30" / ".DS_Store").touch()
    assert restored(saved_checkpoints) == 30


def test_a_manifest_with_other_json_is_damaged(saved_checkpoints):
    (saved_checkpoints / "30" / "manifest.json").write_text("[]\n")
    assert restored(saved_checkpoints) == 20


def test_no_start_from_scratch_if_the_only_checkpoint_has_no_manifest(saved_checkpoints):
    for step in (10, 20):
        shutil.rmtree(saved_checkpoints / str(step))
    (saved_checkpoints / "30" / "manifest.json").unlink()
    checkpointer = OrbaxCheckpointer(saved_checkpoints, run="mine")
    assert checkpointer.latest() is None
    with raises_problem(TrainingError, reason=r"no usable checkpoint: 30 \(it has no manifest\)"):
        checkpointer.raise_if_all_damaged()
    checkpointer.close()


def test_a_step_is_saved_again_only_with_replace(saved_checkpoints):
    checkpointer = OrbaxCheckpointer(saved_checkpoints, Retention(2, best=1, metric="accuracy"), run="mine")
    checkpointer.save(30, state(31), {"step": 31}, {"accuracy": 0.5})
    assert checkpointer.restore()[1] == {"step": 30}
    checkpointer.save(30, state(31), {"step": 31}, {"accuracy": 0.5}, replace=True)
    assert checkpointer.restore()[1] == {"step": 31}
    checkpointer.close()
    assert sorted(path.name for path in saved_checkpoints.iterdir()) == ["20", "30"]
    assert manifest.read(saved_checkpoints / "30").metrics == {"accuracy": 0.5}


def test_killed_while_a_step_is_replaced(saved_checkpoints):
    """Between two renames there is no directory with the step's name."""
    (saved_checkpoints / "30").rename(saved_checkpoints / "30.replaced")
    (saved_checkpoints / ".everstep-0123456789ab-30").mkdir()
    assert restored(saved_checkpoints) == 30
    checkpointer = OrbaxCheckpointer(saved_checkpoints, run="mine")
    assert checkpointer.steps() == [10, 20, 30]
    checkpointer.save(30, state(30), {"step": 30}, replace=True)
    checkpointer.close()
    assert sorted(path.name for path in saved_checkpoints.iterdir()) == ["10", "20", "30"]


def test_newest_meta_skips_a_checkpoint_without_it(saved_checkpoints):
    checkpointer = OrbaxCheckpointer(saved_checkpoints, run="mine")
    assert checkpointer.newest_meta() == {"step": 30}
    shutil.rmtree(saved_checkpoints / "30" / "meta")
    assert checkpointer.newest_meta() == {"step": 20}
    checkpointer.close()
    assert OrbaxCheckpointer(saved_checkpoints / "none").newest_meta() == {}


def test_a_save_succeeds_if_old_checkpoints_cannot_be_removed(saved_checkpoints, monkeypatch, caplog):
    def refuse(path):
        raise PermissionError(13, "Permission denied")

    checkpointer = OrbaxCheckpointer(saved_checkpoints, Retention(2), run="mine")
    monkeypatch.setattr("everstep.storage.remove_directory", refuse)
    checkpointer.save(40, state(40), {"step": 40})
    checkpointer.close()
    assert checkpointer.steps() == [10, 20, 30, 40]
    assert "could not be removed: [Errno 13] Permission denied" in caplog.text
