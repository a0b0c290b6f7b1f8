"""A folder with a toy run to submit, and stand-ins for Slurm's programs."""

import contextlib
import io
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from everstep.cli.main import main

HERE = Path(__file__).parent


class Place:
    """A folder to submit from, which becomes the current one."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.folder, self.run = folder, folder / "runs" / "x"
        self._monkeypatch = monkeypatch
        monkeypatch.chdir(folder)
        monkeypatch.delenv("MAX_JOBS", raising=False)
        shutil.copy(HERE / "toy_run.py", folder)

    def everstep(self, *words: str, code: int = 0) -> str:
        """Runs `everstep …` in this process; returns what it prints, or its error where `code` is not 0."""
        out, err = io.StringIO(), io.StringIO()
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            ended = main(words)
        assert ended == code, err.getvalue()
        return err.getvalue() if code else out.getvalue()

    def submit(self, seconds: float, *options: str, code: int = 0) -> str:
        """Submits the toy run, which trains for some seconds; returns what `everstep submit` prints."""
        command = ["--", sys.executable, "toy_run.py", str(self.run), str(seconds)]
        return self.everstep("submit", "--model-dir", str(self.run), *options, *command, code=code)

    def listed(self) -> dict[str, Any]:
        """Returns the one run, as `everstep runs --json` shows it."""
        (one,) = json.loads(self.everstep("runs", "runs", "--json"))
        return one

    def record(self) -> dict[str, Any]:
        """Returns the run's `run.json`."""
        return json.loads((self.run / "run.json").read_text())

    def has_steps(self, count: int = 1) -> bool:
        """Returns whether the run has trained that many steps."""
        return (self.run / "run.json").exists() and self.record()["step"] >= count

    def trainer(self) -> int:
        """Returns the id of the process that trains."""
        return int(json.loads((self.run / ".lock.json").read_text())["pid"])

    def log(self, suffix: str) -> str:
        """Returns what all jobs have written: `out` or `err`."""
        return "".join(path.read_text() for path in sorted(self.run.glob(f"log-*.{suffix}")))

    def program(self, name: str, script: str) -> None:
        """Puts a program of this name on the path, before any other."""
        folder = self.folder / "bin"
        folder.mkdir(exist_ok=True)
        (folder / name).write_text(f"#!/bin/sh\n{script}\n")
        (folder / name).chmod(0o755)
        if str(folder) not in os.environ["PATH"].split(os.pathsep):
            self._monkeypatch.setenv("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")


def until(condition: Callable[[], Any], seconds: float = 300.0) -> Any:
    """Waits until a condition is true; returns its value."""
    deadline = time.monotonic() + seconds
    while not (value := condition()):
        assert time.monotonic() < deadline, "the condition never became true"
        time.sleep(0.05)
    return value


def begin_now(number: str) -> bool:
    """Lets a requeued job begin now; by itself it begins after two minutes.

    Slurm refuses to start a job in the second in which it was killed: "already killed, do not launch batch job".
    """
    time.sleep(2)
    subprocess.run(["scontrol", "update", f"JobId={number}", "StartTime=now"], check=False, capture_output=True)
    return True
