"""The same commit gives the same sdist and the same wheel, whatever the folder, the umask and the time."""

import hashlib
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.slow, pytest.mark.full]

ROOT = Path(__file__).parent.parent
BUILD = """
import pathlib, sys
from tools.release import archives

archives.build(pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2]), pathlib.Path(sys.argv[3]), 1_800_000_000)
"""


def built(source, folder, umask):
    """Returns the hash of each archive."""
    pytest.importorskip("setuptools", minversion="77")
    command = [sys.executable, "-c", BUILD, str(source), str(folder / "dist"), str(folder / "scratch")]
    environment = os.environ | {"BUILD_ARGS": "--no-isolation", "PYTHONPATH": f"{ROOT / 'src'}{os.pathsep}{ROOT}"}
    done = subprocess.run(command, env=environment, umask=umask, capture_output=True, text=True, timeout=250)
    assert done.returncode == 0, done.stdout + done.stderr
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in (folder / "dist").iterdir()}


def copied(folder):
    """A copy of what the sdist takes, with new times and permissions."""
    left_out = shutil.ignore_patterns(
        ".git", ".venv", "build", "dist", "site", "runs", "*.egg-info", "__pycache__", ".*_cache", ".hypothesis"
    )
    return shutil.copytree(ROOT, folder, ignore=left_out, copy_function=shutil.copyfile)


def test_two_builds_are_equal(tmp_path):
    one = built(copied(tmp_path / "here"), tmp_path / "one", 0o022)
    other = built(copied(tmp_path / "there"), tmp_path / "other", 0o077)
    assert len(one) == 2
    assert one == other
