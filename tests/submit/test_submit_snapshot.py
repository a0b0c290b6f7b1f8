"""What a snapshot contains, and that a submitted run uses it in place of files edited since."""

import hashlib
import json
import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from everstep.projects.components.run_folder import open_run
from everstep.run.environments import code_version
from everstep.run.parent_process import SUBMISSION
from everstep.submit import snapshot
from everstep.submit.request import any_command, project_run
from everstep.testing.problems import raises_problem

pytestmark = pytest.mark.slow

CONFIG = {
    "src_code_path": "src",
    "data_loader_class": "dataset.Loader",
    "preprocessor_class": "dataset.Loader",
    "model_builder_class": "dataset.Loader",
    "evaluator_class": "dataset.Loader",
    "project_name": "digits",
    "data_dir": "data",
    "epochs": 1,
}


@pytest.fixture
def root(tmp_path: Path) -> Path:
    root = tmp_path / "project"
    for folder in ("src/parts/__pycache__", "src/.hidden", "runs/a", "data"):
        (root / folder).mkdir(parents=True)
    (root / "src" / "dataset.py").write_text("class Loader: version = 'first'\n")
    (root / "src" / "parts" / "words.txt").write_text("a vocabulary\n")
    (root / "src" / "parts" / "__pycache__" / "x.pyc").write_bytes(b"x")
    (root / "src" / ".hidden" / "x.py").write_text("")
    (root / "data" / "labels.csv").write_text("0,1\n")
    (root / "runs" / "a" / "config.yaml").write_text(yaml.safe_dump(CONFIG))
    return root


def taken(root: Path) -> Path:
    request = project_run("a", str(root))
    folder = snapshot.place(request)
    snapshot.take(request, folder, "slurm")
    return folder


def names(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


def test_a_submitted_run_uses_its_snapshot(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = taken(root)
    assert names(folder) == ["config.yaml", "sources/dataset.py", "sources/parts/words.txt", "submission.json"]
    (root / "src" / "dataset.py").write_text("class Loader: version = 'edited'\n")
    (root / "runs" / "a" / "config.yaml").write_text(yaml.safe_dump({**CONFIG, "epochs": 99}))

    def used() -> tuple[int, str, str]:
        run = open_run("a", root)
        with run.project.active():
            loader = run.project.find_class("dataset.Loader", object, "data_loader_class")
        return run.config.epochs, loader.version, run.config.data_dir

    assert used() == (99, "edited", str(root / "data"))
    monkeypatch.setenv(SUBMISSION, str(folder))
    assert used() == (1, "first", str(root / "data"))
    assert code_version(root) == json.loads((folder / "submission.json").read_text())["code"]

    (root / "runs" / "b").mkdir()
    (root / "runs" / "b" / "config.yaml").write_text(yaml.safe_dump({**CONFIG, "epochs": 3}))
    assert open_run("b", root).config.epochs == 3, "another run does not use it"
    (folder / "config.yaml").unlink()
    with raises_problem(key=str(folder), reason="are incomplete", remedy="submit the run again"):
        open_run("a", root)


def test_the_commit_and_uncommitted_changes(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def git(*words: str) -> str:
        command = ["git", "-C", str(root), "-c", "user.name=me", "-c", "user.email=me@example.org", *words]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()

    git("init", "-q")
    git("add", "src")
    git("commit", "-qm", "first")
    (root / "src" / "dataset.py").write_text("class Loader: version = 'not committed'\n")
    first, folder = git("rev-parse", "HEAD"), taken(root)
    assert "+class Loader: version = 'not committed'" in (folder / "code.diff").read_text()
    git("commit", "-qam", "second")
    monkeypatch.setenv(SUBMISSION, str(folder))
    version = code_version(root)
    assert (version["commit"], version["dirty"], version["sources"]) == (first, True, None)


def test_only_the_user_can_read_it(root: Path) -> None:
    before = os.umask(0)
    try:
        folder = taken(root)
    finally:
        os.umask(before)
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    snapshot.record_job(folder, "7", "http://me:hunter2hunter2@127.0.0.1:8265")
    assert "hunter2hunter2" not in (folder / "submission.json").read_text()


def test_too_much_code(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(snapshot, "_MAX_SOURCE_BYTES", 2**20)
    (root / "src" / "parts" / "images.bin").write_bytes(bytes(2**20))
    with raises_problem(
        key="sources", reason="10000 files, 1 MiB.*'parts/images.bin'", remedy="keep data out"
    ) as error:
        taken(root)
    assert (error.value.key, error.value.received) == ("sources", str(root / "src"))
    assert error.value.remedy == "keep data out of the code's folder"
    assert not (root / "runs" / "a" / "submissions").exists()


def test_links_are_followed_and_loops_end(root: Path, tmp_path: Path) -> None:
    (tmp_path / "shared").mkdir()
    (tmp_path / "shared" / "common.py").write_text("x = 1\n")
    for name in ("one", "two"):
        os.symlink("../../shared", root / "src" / name)
    os.symlink("..", root / "src" / "parts" / "loop")
    os.symlink("nowhere", root / "src" / "dangling.py")
    copied = taken(root) / "sources"
    assert names(copied) == ["dataset.py", "one/common.py", "parts/words.txt", "two/common.py"]
    assert not (copied / "one").is_symlink()


def test_classes_beside_runs_and_data(root: Path) -> None:
    """`src_code_path: .` is a whole project; its runs and its data are not part of its code."""
    (root / "runs" / "a" / "config.yaml").write_text(yaml.safe_dump({**CONFIG, "src_code_path": "."}))
    assert names(taken(root) / "sources") == ["src/dataset.py", "src/parts/words.txt"]


def test_the_python_files_of_a_command(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(root)
    request = any_command([sys.executable, "train.py"], "runs/c")
    folder = snapshot.place(request)
    snapshot.take(request, folder, "slurm")
    assert names(folder / "sources") == ["src/dataset.py"]
    record = json.loads((folder / "submission.json").read_text())
    taken(root)  # the copies of another run are not part of the code
    (root / "src" / "parts" / "words.txt").write_text("other words\n")
    assert not snapshot.sources_changed(record, request.directory)
    (root / "src" / "dataset.py").write_text("")
    assert snapshot.sources_changed(record, request.directory)


def test_the_fingerprint_of_data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "1.bin").write_bytes(b"123")
    (tmp_path / "b.bin").write_bytes(b"4567")
    first = snapshot.data_fingerprint(tmp_path)
    assert (first["files"], first["bytes"], first["content_bytes"], first["complete"]) == (2, 7, 7, True)
    assert first["content"] == hashlib.sha256(b"4567123").hexdigest(), "files of a folder before folders in it"
    assert snapshot.data_difference(first, snapshot.data_fingerprint(tmp_path)) is None

    (tmp_path / "b.bin").write_bytes(b"4560")
    assert (
        snapshot.data_difference(first, snapshot.data_fingerprint(tmp_path))
        == "other content than when it was submitted"
    )
    (tmp_path / "b.bin").rename(tmp_path / "c.bin")
    found = snapshot.data_difference(first, snapshot.data_fingerprint(tmp_path))
    assert found == "other names or sizes than when it was submitted"

    monkeypatch.setattr(snapshot, "MAX_DATA_BYTES", 5)
    limited = snapshot.data_fingerprint(tmp_path)
    assert (limited["bytes"], limited["content_bytes"], limited["complete"]) == (7, 5, False)
    monkeypatch.setattr(snapshot, "MAX_DATA_FILES", 1)
    assert (snapshot.data_fingerprint(tmp_path)["files"], snapshot.data_fingerprint(tmp_path)["complete"]) == (1, False)
