"""The code of a run, restored from its commit and the patch that the run has kept."""

import hashlib

import pytest

from everstep.reproduce.comparison import changed_files, missing_files
from everstep.reproduce.evidence import examine
from everstep.reproduce.repetition import CodeUnavailable, python_path, restore_code
from everstep.testing.problems import raises_problem

pytestmark = pytest.mark.slow


@pytest.fixture
def original(place):
    return examine(place.folder / "first")


def test_code_of_the_record_with_the_current_data(place, original, tmp_path):
    then = {name: (place.folder / name).read_text() for name in ("reproduce_experiment.py", "reproduce_rate.py")}
    place.rewrite("reproduce_experiment.py", "Dropout(RATE)", "Dropout(0.1)")
    (place.folder / "reproduce_rate.py").unlink()
    (place.folder / "later.py").write_text("")
    place.git("add", ".")
    place.git("commit", "-qm", "second")
    status = place.git("status", "--porcelain", "--ignored")
    folder = restore_code(original, place.folder, tmp_path / "code")
    assert {name: (folder / name).read_text() for name in then} == then
    assert (folder / "points.npz").resolve() == (place.folder / "points.npz").resolve()
    assert not (folder / "later.py").exists()
    assert not (folder / ".git").exists()
    assert place.git("status", "--porcelain", "--ignored") == status
    assert "worktree" not in place.git("for-each-ref")


def test_a_folder_of_the_repository(place, original, tmp_path):
    (place.folder / "below" / "data").mkdir(parents=True)
    folder = restore_code(original, place.folder / "below", tmp_path / "code")
    assert folder == tmp_path / "code" / "below"
    assert (folder / "data").is_dir()


def test_modules_are_found_there(place, original, tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(place.folder / "src"))
    found = python_path(place.folder, tmp_path / "code")
    assert found == str(tmp_path / "code" / "src")


def test_a_modified_patch(place, original, tmp_path):
    place.rewrite("first/code.diff", "0.5", "0.6")
    with raises_problem(CodeUnavailable, reason="is missing or was modified"):
        restore_code(original, place.folder, tmp_path / "code")


def test_a_missing_commit(place, original, tmp_path):
    original.record["code"]["commit"] = "0" * 40
    with raises_problem(CodeUnavailable, reason="commit 000000000000 is in no git repository"):
        restore_code(original, place.folder, tmp_path / "code")
    original.record["code"]["commit"] = None
    with raises_problem(CodeUnavailable, reason="not trained in a git repository"):
        restore_code(original, place.folder, tmp_path / "code")


def test_data_files_are_checked_without_a_run(place, original):
    sha = hashlib.sha256((place.folder / "points.npz").read_bytes()).hexdigest()
    entry = {"sha256": sha, "bytes": 1, "path": "points.npz"}
    original.record["data"] |= {"points.raw": entry, "elsewhere": {**entry, "path": "s3://bucket/points.npz"}}
    assert changed_files(original, place.folder) == missing_files(original, place.folder) == []
    (place.folder / "points.npz").write_bytes(b"other")
    assert [str(cause) for cause in changed_files(original, place.folder)] == ["data: points.raw has other content"]
    (place.folder / "points.npz").unlink()
    assert changed_files(original, place.folder) == []
    (cause,) = missing_files(original, place.folder)
    assert str(cause) == f"data: points.raw is gone: {str(place.folder / 'points.npz')!r}"
