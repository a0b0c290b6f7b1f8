"""A run that is there to be reproduced; each test has a copy of the repository that it was done in.

The code is that of a commit, and two changes that are not committed: an untracked file, and an edit.
"""

import dataclasses
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
from tests.children import forked

from everstep.reproduce.comparison import Verdict
from everstep.reproduce.reproducing import reproduce

HERE = Path(__file__).parent
IGNORED = "points.npz\nfirst\nsecond\nagain\n__pycache__\n"
TRAIN = ["train", "reproduce/file", "--import=reproduce_experiment", "--seed=3", "--no-export", "--model-dir=first"]


@dataclasses.dataclass
class Place:
    """A folder with an experiment, its data and a run of it."""

    folder: Path

    def everstep(self, *words: str) -> subprocess.CompletedProcess[str]:
        """Runs a command there, as a user does."""
        environment = {name: value for name, value in os.environ.items() if name != "KERAS_BACKEND"}
        command = [sys.executable, "-m", "everstep", *words]
        settings = {"cwd": self.folder, "env": environment, "capture_output": True, "text": True, "timeout": 600}
        return forked.run(command, backend=keras.backend.backend(), **settings)

    def reproduce(self, *words: str) -> tuple[int, dict[str, Any]]:
        """Returns exit code and verdict of a reproduction, or the error of one that is not possible."""
        done = self.everstep("reproduce", "first", "--json", *words)
        if done.returncode == 2:
            return 2, {"error": done.stderr.strip()}
        assert done.returncode in (0, 1), done.stderr
        assert done.stdout, done.stderr
        return done.returncode, json.loads(done.stdout)

    def again(self, **settings: Any) -> Verdict:
        """Does the run again, called from this process; as `reproduce`, which takes a process more."""
        before = os.getcwd()
        os.chdir(self.folder)
        try:
            return reproduce("first", show=False, **settings)
        finally:
            os.chdir(before)

    def words(self) -> list[str]:
        """Returns the words of the command that trains the run."""
        return [*TRAIN, f"--backend={keras.backend.backend()}"]

    def train(self, *words: str) -> None:
        """Trains the run again, with the current code."""
        shutil.rmtree(self.folder / "first", ignore_errors=True)
        done = self.everstep(*self.words(), *words)
        assert done.returncode == 0, done.stderr

    def git(self, *words: str) -> str:
        command = ["git", "-c", "user.name=a", "-c", "user.email=a@b", *words]
        return subprocess.run(command, cwd=self.folder, check=True, capture_output=True, text=True).stdout

    def record(self, run: str = "first") -> dict[str, Any]:
        return json.loads((self.folder / run / "run.json").read_text())

    def rewrite(self, name: str, old: str, new: str) -> None:
        """Changes a text in a file; it has to be there."""
        path = self.folder / name
        assert old in path.read_text()
        path.write_text(path.read_text().replace(old, new))


@pytest.fixture(scope="session")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("trained")
    made, source = Place(folder), (HERE / "reproduce_experiment.py").read_text()
    (folder / "reproduce_experiment.py").write_text(source.replace("Eight steps", "Steps"))
    (folder / ".gitignore").write_text(IGNORED)
    made.git("init", "-q")
    made.git("add", ".")
    made.git("commit", "-qm", "first")
    (folder / "reproduce_experiment.py").write_text(source)
    shutil.copy(HERE / "reproduce_rate.py", folder)
    x = np.random.default_rng(0).normal(size=(64, 2)).astype("float32")
    np.savez(folder / "points.npz", x=x, y=x.sum(axis=1, keepdims=True))
    made.train()
    shutil.rmtree(folder / "__pycache__", ignore_errors=True)
    return folder


@pytest.fixture
def place(trained: Path, tmp_path: Path) -> Place:
    shutil.copytree(trained, tmp_path / "place")
    return Place(tmp_path / "place")
