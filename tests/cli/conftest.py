"""Two ways to run a command: in this process, where Keras is not needed, and as a user does."""

import dataclasses
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from everstep.cli.main import main

HERE = Path(__file__).parent


@dataclasses.dataclass
class Outcome:
    code: int
    out: str
    err: str


Command = Callable[..., Outcome]


@pytest.fixture
def everstep(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Command:
    """Runs `everstep …` here, in an empty directory, as if Keras had never been imported."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delitem(sys.modules, "keras", raising=False)
    monkeypatch.setattr(os, "environ", {k: v for k, v in os.environ.items() if k != "KERAS_BACKEND"})
    monkeypatch.setattr(sys, "path", list(sys.path))

    def run(*words: str) -> Outcome:
        code = main(words)
        return Outcome(code, *capsys.readouterr())

    return run


@pytest.fixture
def shell(tmp_path: Path) -> Command:
    """Runs the installed `everstep …`, in an empty directory that has the tiny experiments in it."""
    (tmp_path / "tiny_experiments.py").write_text((HERE / "tiny_experiments.py").read_text())
    environment = {k: v for k, v in os.environ.items() if k != "KERAS_BACKEND"}

    def run(*words: str, **extra: str) -> Outcome:
        command = [str(Path(sys.executable).with_name("everstep")), *words]
        done = subprocess.run(
            command, cwd=tmp_path, env=environment | extra, capture_output=True, text=True, timeout=300
        )
        return Outcome(done.returncode, done.stdout, done.stderr)

    return run
