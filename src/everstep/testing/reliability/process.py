"""A training run as its user sees it: a command line, a process, a directory."""

import dataclasses
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

PATIENCE = 300.0


@dataclasses.dataclass(frozen=True)
class Job:
    """One run: the same command, however often it takes.

    Attributes:
      experiment: The name of the experiment in `workloads`.
      backend: The Keras backend.
      directory: The run directory.
      overrides: Further arguments of the command line.
    """

    experiment: str
    backend: str
    directory: Path
    overrides: tuple[str, ...] = ()

    def command(self) -> list[str]:
        """Returns the command line."""
        module = ["--import", "everstep.testing.reliability.workloads", "--backend", self.backend]
        words = [*module, "--model-dir", str(self.directory), *self.overrides]
        return [sys.executable, "-m", "everstep", "train", self.experiment, *words]

    def start(self) -> "Process":
        """Starts the run."""
        return Process(self.command(), self.directory.with_suffix(".log"))

    def finish(self) -> "Process":
        """Runs it to its end.

        Raises:
          RuntimeError: It did not succeed.
        """
        process = self.start()
        if process.wait() != 0:
            raise RuntimeError(f"{' '.join(self.command())} ended with {process.code}:\n{process.said()}")
        return process

    def record(self) -> dict[str, Any]:
        """Returns its `run.json`."""
        return dict(json.loads((self.directory / "run.json").read_text()))

    def newest_checkpoint(self) -> int | None:
        """Returns the step of the newest checkpoint."""
        folder = self.directory / "checkpoints"
        steps = [int(path.name) for path in folder.iterdir() if path.name.isdigit()] if folder.is_dir() else []
        return max(steps, default=None)

    def heartbeat(self) -> int | None:
        """Returns the step that the process reported last."""
        try:
            return int((self.directory / ".heartbeat").read_text().split()[0])
        except (OSError, ValueError, IndexError):
            return None

    def holder(self) -> int | None:
        """Returns the id of the process that holds the directory."""
        try:
            return int(json.loads((self.directory / ".lock.json").read_text())["pid"])
        except (OSError, ValueError, KeyError):
            return None


class Process:
    """A process that is sent signals; its output is written to a file.

    Attributes:
      seconds: How long it lived, when it has ended.
    """

    def __init__(self, command: list[str], log: Path) -> None:
        self._log = log
        self._began = time.monotonic()
        environment = {k: v for k, v in os.environ.items() if k != "KERAS_BACKEND"}
        environment["TF_CPP_MIN_LOG_LEVEL"] = "3"
        with open(log, "ab") as file:
            self._from = file.tell()
            self._process = subprocess.Popen(command, stdout=file, stderr=file, env=environment, cwd=log.parent)
        self.pid = self._process.pid
        self.seconds = 0.0

    def send(self, number: int) -> None:
        """Sends a signal; does nothing if the process has ended."""
        self._process.send_signal(number)

    def ends_within(self, seconds: float) -> bool:
        """Waits for it; returns whether it has ended."""
        try:
            self._process.wait(seconds)
        except subprocess.TimeoutExpired:
            return False
        self.seconds = time.monotonic() - self._began
        return True

    def wait(self, seconds: float = PATIENCE) -> int:
        """Waits for its end; returns the exit code.

        Raises:
          RuntimeError: It does not end; it is killed then.
        """
        if not self.ends_within(seconds):
            self.kill()
            raise RuntimeError(f"not done after {seconds:.0f} s:\n{self.said()}")
        return self.code

    def kill(self) -> None:
        """Kills it, and waits until it has ended."""
        self.send(signal.SIGKILL)
        self._process.wait()
        self.seconds = time.monotonic() - self._began

    @property
    def code(self) -> int:
        """The exit code as in a shell: 128 + the number of the signal that ended it."""
        code = self._process.wait()
        return code if code >= 0 else 128 - code

    @property
    def was_ended(self) -> bool:
        """Whether a signal ended it, instead of being handled."""
        return self._process.wait() < 0

    def until(self, happened: Callable[[], bool]) -> bool:
        """Waits until something happens; returns whether it did before the end of the process."""
        end = time.monotonic() + PATIENCE
        while self._process.poll() is None and time.monotonic() < end:
            if happened():
                return True
            time.sleep(0.005)
        return False

    def said(self) -> str:
        """Returns the end of its output."""
        return self._log.read_bytes()[self._from :].decode(errors="replace")[-3000:]
