"""Restored and copied projects: the original stays unchanged, and recorded code is used, not the current one."""

import hashlib
import os
import subprocess
import sys

import pytest

from everstep.errors import UsageError
from everstep.projects.repetitions import copy_flow_project
from everstep.reproduce import repetition
from everstep.reproduce.evidence import Evidence
from everstep.reproduce.repetition import CodeUnavailable, code_folder, restore_code
from everstep.testing.problems import raises_problem

pytestmark = pytest.mark.slow

SETTINGS = {"task": "A", "parameters": {"seed": 1}, "catalog": {}, "optimizer": {}}


def git(folder, *words):
    command = ["git", "-c", "user.name=a", "-c", "user.email=a@b", *words]
    return subprocess.run(command, cwd=folder, check=True, capture_output=True, text=True).stdout.strip()


def committed(folder, **files):
    """A repository with these files, and its commit."""
    for name, text in {"config/parameters.yaml": "A: {}\n", **files}.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    for words in (("init", "-q"), ("add", "."), ("commit", "-qm", "a")):
        git(folder, *words)
    return git(folder, "rev-parse", "HEAD")


def evidence(directory, commit, **code):
    return Evidence(directory, {"code": {"commit": commit, "dirty": False, **code}}, {}, {})


def test_values_of_this_machine_are_not_removed(tmp_path):
    project = tmp_path / "project"
    commit = committed(project, **{".gitignore": "config/local/\n", "train.py": "x = 1\n"})
    (project / "config" / "local").mkdir()
    (project / "config" / "local" / "parameters.yaml").write_text("A: {mine: 1}\n")
    code = restore_code(evidence(tmp_path, commit), project, tmp_path / "restored")
    copy_flow_project(code, tmp_path / "copy", SETTINGS)
    assert (project / "config" / "local" / "parameters.yaml").read_text() == "A: {mine: 1}\n"


def test_values_behind_a_link_are_not_removed(tmp_path):
    project, home = tmp_path / "project", tmp_path / "home"
    committed(project)
    home.mkdir()
    (home / "parameters.yaml").write_text("A: {mine: 1}\n")
    os.symlink(home, project / "config" / "local")
    copy_flow_project(project, tmp_path / "copy", SETTINGS)
    assert (home / "parameters.yaml").is_file()


def test_what_a_task_writes_stays_in_the_copy(tmp_path):
    project, copy = tmp_path / "project", tmp_path / "copy"
    files = {".gitignore": "data/feature/*\n!.gitkeep\ndata/raw/\n", "data/feature/.gitkeep": ""}
    commit = committed(project, **files)
    (project / "data" / "feature" / "f.txt").write_text("original")
    (project / "data" / "raw").mkdir()
    (project / "data" / "raw" / "a.txt").write_text("a")
    code = restore_code(evidence(tmp_path, commit), project, tmp_path / "restored")
    copy_flow_project(code, copy, SETTINGS)
    assert (copy / "data" / "raw" / "a.txt").read_text() == "a"
    (copy / "data" / "feature" / "f.txt").write_text("again")
    (copy / "data" / "raw" / "new.txt").write_text("downloaded")
    assert (project / "data" / "feature" / "f.txt").read_text() == "original"
    assert [path.name for path in (project / "data" / "raw").iterdir()] == ["a.txt"]


def test_a_renamed_folder_is_reported(tmp_path):
    commit = committed(tmp_path / "project", **{"old/train.py": "RATE = 1\n"})
    git(tmp_path / "project", "mv", "old", "new")
    with raises_problem(CodeUnavailable, reason="has no folder 'new'"):
        restore_code(evidence(tmp_path, commit), tmp_path / "project" / "new", tmp_path / "restored")


def test_code_of_today_does_not_come_before_that_of_the_record(tmp_path):
    project = tmp_path / "project"
    commit = committed(project, **{"util.py": "RATE = 1\n", "main.py": "import util; print(util.RATE)\n"})
    git(project, "rm", "-q", "util.py")
    (project / "util").mkdir()
    (project / "util" / "__init__.py").write_text("RATE = 2\n")
    (project / "util" / "data.bin").write_text("x")
    git(project, "add", ".")
    code = restore_code(evidence(tmp_path, commit), project, tmp_path / "restored")
    done = subprocess.run([sys.executable, "main.py"], cwd=code, capture_output=True, text=True)
    assert done.stdout.strip() == "1"


def test_a_copy_inside_the_project_does_not_copy_itself(tmp_path):
    committed(tmp_path / "project")
    (tmp_path / "project" / "out").mkdir()
    copy_flow_project(tmp_path / "project", tmp_path / "project" / "out" / "again" / "project", SETTINGS)
    assert len(list(tmp_path.rglob("parameters.yaml"))) == 2


@pytest.mark.parametrize("inside", [True, False])
def test_a_patch_from_outside_the_project_is_not_applied(tmp_path, inside):
    project = tmp_path / "project"
    commit = committed(project, **{"train.py": "RATE = 1\n", ".gitignore": "runs/\n"})
    (project / "train.py").write_text("RATE = 3\n")
    patch = git(project, "diff") + "\n"
    run = (project if inside else tmp_path) / "runs" / "a"
    run.mkdir(parents=True)
    (run / "code.diff").write_text(patch)
    original = evidence(run, commit, dirty=True, changes=hashlib.sha256(patch.encode()).hexdigest())
    if inside:
        code = restore_code(original, project, tmp_path / "restored")
        assert (code / "train.py").read_text() == "RATE = 3\n"
    else:
        with raises_problem(CodeUnavailable, reason="outside the project, and are not applied"):
            restore_code(original, project, tmp_path / "restored")


def test_what_trained_a_run_may_be_missing(tmp_path, monkeypatch):
    (tmp_path / "config.yaml").write_text("trainer: {}\n")
    original = Evidence(tmp_path, {"flow": {"project": "p"}, "code": {}}, {}, {})
    monkeypatch.setattr(repetition, "_kinds", [])
    monkeypatch.setattr(repetition, "missing_companions", lambda group: {"projects": "everstep.projects"})
    with pytest.raises(UsageError) as refused:
        code_folder(tmp_path, original)
    assert refused.value.key == str(tmp_path)
    assert "everstep.projects, which this installation is without" in refused.value.reason
