"""A folder with a toy run to submit, `everstep` as a user types it, stand-ins for Slurm's programs, and patience."""

import contextlib
import io
import json
import os
import shutil
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from everstep.cli.main import main

HERE = Path(__file__).parent


class Place:
    """A folder to submit from; it is the current one."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.folder, self.run = folder, folder / "runs" / "x"
        self._monkeypatch = monkeypatch
        monkeypatch.chdir(folder)
        monkeypatch.delenv("MAX_JOBS", raising=False)
        shutil.copy(HERE / "toy_run.py", folder)

    def everstep(self, *words: str, code: int = 0) -> str:
        """What `everstep …` prints; of one that is refused, what it says."""
        out, err = io.StringIO(), io.StringIO()
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            ended = main(words)
        assert ended == code, err.getvalue()
        return err.getvalue() if code else out.getvalue()

    def submit(self, seconds: float, *options: str, code: int = 0) -> str:
        command = ["--", sys.executable, "toy_run.py", str(self.run), str(seconds)]
        return self.everstep("submit", "--model-dir", str(self.run), *options, *command, code=code)

    def listed(self) -> dict[str, Any]:
        """The one run, as `everstep runs --json` shows it."""
        (one,) = json.loads(self.everstep("runs", "runs", "--json"))
        return one

    def record(self) -> dict[str, Any]:
        return json.loads((self.run / "run.json").read_text())

    def has_steps(self, count: int = 1) -> bool:
        return (self.run / "run.json").exists() and self.record()["step"] >= count

    def trainer(self) -> int:
        """The process that trains."""
        return int(json.loads((self.run / ".lock.json").read_text())["pid"])

    def said(self, suffix: str) -> str:
        return "".join(path.read_text() for path in sorted(self.run.glob(f"log-*.{suffix}")))

    def program(self, name: str, script: str) -> None:
        """Puts a program of this name on the path, before any other."""
        folder = self.folder / "bin"
        folder.mkdir(exist_ok=True)
        (folder / name).write_text(f"#!/bin/sh\n{script}\n")
        (folder / name).chmod(0o755)
        if str(folder) not in os.environ["PATH"].split(os.pathsep):
            self._monkeypatch.setenv("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")


def until(condition: Callable[[], Any], seconds: float = 60.0) -> Any:
    """Waits for a condition; returns what it gave."""
    deadline = time.monotonic() + seconds
    while not (value := condition()):
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.05)
    return value
