"""What is not committed, as a patch: it brings the code back, and the repository does not notice."""

import hashlib
import os
import stat
import subprocess
import sys

import pytest

from everstep import redaction
from everstep.run import environments as environment
from everstep.run.environments import CODE_DIFF, code_diff, read_code, write_code_diff
from everstep.run.record import Run

pytestmark = pytest.mark.slow


def git(directory, *words):
    names = ["-c", "user.name=a", "-c", "user.email=a@b"]
    return subprocess.run(["git", *names, *words], cwd=directory, check=True, capture_output=True).stdout


def inside(folder):
    """Every file of a folder with its content and times."""
    files = [path for path in folder.rglob("*") if path.is_file()]
    return {path: (path.read_bytes(), path.stat().st_mtime_ns) for path in files}


@pytest.fixture
def repository(tmp_path):
    root = tmp_path / "repository"
    (root / "package").mkdir(parents=True)
    git(root, "init", "-q")
    (root / "package" / "a.py").write_bytes(b"x = 1\r\n# caf\xe9\n")
    (root / "image.bin").write_bytes(bytes(range(256)))
    (root / ".gitignore").write_text("ignored.py\n")
    git(root, "add", ".")
    git(root, "commit", "-qm", "first")
    return root


def changed(root):
    (root / "package" / "a.py").write_bytes(b"x = 2\r\n# caf\xe9\n")
    (root / "package" / "new file.py").write_text("y = 1")
    (root / "image.bin").write_bytes(bytes(range(1, 256)))
    (root / "ignored.py").write_text("secret = 1\n")
    (root / "notes.txt").write_text("not code\n")


def test_commit_and_patch_are_the_code(repository, tmp_path):
    changed(repository)
    before = inside(repository)
    patch = code_diff(repository / "package")
    assert inside(repository) == before  # neither the index nor the objects
    again = tmp_path / "again"
    git(tmp_path, "clone", "-q", str(repository), str(again))
    (tmp_path / "code.diff").write_bytes(patch)
    git(again, "apply", "--binary", str(tmp_path / "code.diff"))
    for name in ("package/a.py", "package/new file.py", "image.bin"):
        assert (again / name).read_bytes() == (repository / name).read_bytes()
    assert not (again / "ignored.py").exists()
    assert not (again / "notes.txt").exists()


def test_nothing_changed(repository, tmp_path):
    assert code_diff(repository) == b""
    assert read_code(repository)[1] is None
    assert code_diff(tmp_path) is None  # no repository


def test_without_a_commit(tmp_path):
    git(tmp_path, "init", "-q")
    (tmp_path / "a.py").write_text("")
    assert code_diff(tmp_path) is None


def test_a_patch_that_holds_data_is_not_kept(repository, monkeypatch):
    monkeypatch.setattr(environment, "MAX_DIFF_BYTES", 100)
    changed(repository)
    assert code_diff(repository) is None


def test_a_run_reads_the_patch_once(repository, tmp_path, monkeypatch):
    changed(repository)
    patches = []
    read = environment.code_diff
    monkeypatch.setattr(environment, "code_diff", lambda path: patches.append(read(path)) or patches[-1])
    run = Run.open(tmp_path / "run", "mnist/mlp", "jax", code_root=repository)
    run.begin(0, "")
    assert len(patches) == 1
    assert (tmp_path / "run" / CODE_DIFF).read_bytes() == patches[0]
    assert run.record["code"]["changes"] == hashlib.sha256(patches[0]).hexdigest()


@pytest.mark.skipif(sys.platform == "win32", reason="no such permissions")
def test_kept_for_the_owner_and_without_secrets(repository, tmp_path):
    (repository / "package" / "new.py").write_text("TOKEN = 'sesame-open-9f8e7d'\n")
    redaction.learn({"api_token": "sesame-open-9f8e7d"})
    write_code_diff(tmp_path, read_code(repository)[1])
    path = tmp_path / CODE_DIFF
    assert "sesame" not in path.read_text()
    assert stat.S_IMODE(os.stat(path).st_mode) == 0o600
    git(repository, "add", ".")
    git(repository, "commit", "-qm", "second")
    write_code_diff(tmp_path, read_code(repository)[1])
    assert not path.exists()
