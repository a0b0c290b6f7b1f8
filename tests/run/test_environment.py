import os
import subprocess
import sys

import numpy as np
import pytest

from everstep.run.environments import code_version, environment, fingerprint, installed_packages

pytestmark = pytest.mark.slow


def git(directory, *arguments):
    identity = {f"GIT_{who}_{what}": "a@b" for who in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")}
    subprocess.run(
        ["git", "-C", directory, *arguments], check=True, capture_output=True, env={**os.environ, **identity}
    )


def test_a_package_installed_while_the_process_runs_is_seen(tmp_path, monkeypatch):
    """As by `pip install` in a notebook; the first folder on the path counts."""
    first, second = tmp_path / "first", tmp_path / "second"
    for folder in (first, second):
        folder.mkdir()
    monkeypatch.setattr(sys, "path", [str(first), str(second), str(tmp_path / "missing"), *sys.path])
    assert "one-two" not in installed_packages()
    (second / "One_Two-1.0+cpu.dist-info").mkdir()
    assert installed_packages()["one-two"] == "1.0+cpu"
    (first / "one_two-2.0.dist-info").mkdir()
    assert installed_packages()["one-two"] == "2.0"


def test_environment_names_versions_without_importing():
    code = "from everstep.run.environments import environment; environment(); import sys; "
    code += "print(*{'keras', 'tensorflow', 'jax', 'torch'} & set(sys.modules))"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == ""
    found = environment()
    assert found["packages"]["numpy"] == np.__version__
    hardware = {"platform", "machine", "processor", "cpu_count", "gpus"}
    assert hardware | {"python", "packages", "settings"} == set(found)


@pytest.fixture
def repository(tmp_path):
    git(tmp_path, "init", "-q")
    (tmp_path / "a.py").write_text("x = 1\n")
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "-qm", "first")
    return tmp_path


def test_code_version_in_a_clean_repository(repository):
    version = code_version(repository)
    assert len(version["commit"]) == 40
    assert (version["dirty"], version["sources"]) == (False, None)


@pytest.mark.parametrize("name", ["a.py", "new.py"])
def test_a_change_or_a_new_source_makes_it_dirty(repository, name):
    (repository / name).write_text("x = 2\n")
    assert code_version(repository)["dirty"] is True


def test_changes_have_a_digest_of_their_own(repository):
    (repository / "a.py").write_text("x = 2\n")
    first = code_version(repository)["changes"]
    (repository / "new.py").write_text("y = 1\n")
    second = code_version(repository)["changes"]
    assert len({None, first, second}) == 3
    (repository / "new.py").unlink()
    assert code_version(repository)["changes"] == first


def test_output_beside_the_code_does_not_make_it_dirty(repository):
    (repository / "runs").mkdir()
    (repository / "runs" / "run.json").write_text("{}")
    assert code_version(repository)["dirty"] is False


def test_without_git_the_sources_are_digested(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", "")
    (tmp_path / "a.py").write_text("x = 1\n")
    before = code_version(tmp_path)
    assert (before["commit"], before["dirty"]) == (None, None)
    (tmp_path / ".venv").mkdir()
    (tmp_path / ".venv" / "b.py").write_text("")
    (tmp_path / "data.csv").write_text("1")
    assert code_version(tmp_path) == before
    (tmp_path / "a.py").write_text("x = 2\n")
    assert code_version(tmp_path)["sources"] != before["sources"]


def test_fingerprint_of_a_nested_structure():
    x = np.arange(6, dtype=np.float32).reshape(2, 3)
    found = fingerprint({"x": x, "y": (np.array([1, 2]), None, np.array(["a", "bc"], object))})
    assert list(found) == ["x", "y/0", "y/2"]
    assert (found["x"]["shape"], found["x"]["dtype"]) == ([2, 3], "float32")
    assert fingerprint({"x": np.asfortranarray(x)})["x"] == found["x"]
    assert fingerprint({"x": x + 1})["x"]["sha256"] != found["x"]["sha256"]
    assert list(fingerprint(x)) == [""]
