"""Where workers run: processes on this machine, or jobs of a cluster (`clusters.py`)."""

import contextlib
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from everstep.errors import UsageError

EXECUTORS = ("local", "ray", "slurm")


def worker_command(directory: Path, longer: Sequence[str], *options: str) -> list[str]:
    """Returns the command of one worker."""
    words = [word for one in longer for word in ("--longer", one)]
    return [sys.executable, "-m", "everstep.sweeps.worker", str(directory.resolve()), *options, *words]


def visible_gpus() -> list[str]:
    """Returns the NVIDIA GPUs that this process may use, as `CUDA_VISIBLE_DEVICES` names them."""
    if (given := os.environ.get("CUDA_VISIBLE_DEVICES")) is not None:
        return [name.strip() for name in given.split(",") if name.strip()]
    if shutil.which("nvidia-smi") is None:
        return []
    with contextlib.suppress(OSError, subprocess.SubprocessError):
        found = subprocess.run(["nvidia-smi", "--list-gpus"], capture_output=True, text=True, timeout=30).stdout
        return [str(number) for number, _ in enumerate(found.splitlines())]
    return []


def device_environment(worker: int, workers: int, gpus: Sequence[str]) -> dict[str, str]:
    """Returns the variables that keep workers from taking each other's GPUs: one for each, in turn.

    Where several share one, none of them reserves all of its memory.
    """
    if not gpus or workers < 2:
        return {}
    sharing = -(-workers // len(gpus))
    found = {"CUDA_VISIBLE_DEVICES": gpus[worker % len(gpus)]} if len(gpus) > 1 else {}
    if sharing > 1:
        found |= {"XLA_PYTHON_CLIENT_MEM_FRACTION": f"{0.9 / sharing:.2f}", "TF_FORCE_GPU_ALLOW_GROWTH": "true"}
    return {name: value for name, value in found.items() if name not in os.environ or name == "CUDA_VISIBLE_DEVICES"}


class LocalWorkers:
    """Workers on this machine; those that die are replaced.

    Args:
      directory: The sweep's directory.
      count: How many there are.
      longer: Overrides for trials that train an earlier trial longer.
    """

    def __init__(self, directory: Path, count: int, longer: Sequence[str] = ()) -> None:
        self._directory, self._longer, self._count = directory, longer, count
        self._devices = visible_gpus() if count > 1 else []
        self._processes = [self._start(number) for number in range(count)]

    def _start(self, number: int) -> subprocess.Popen[bytes]:
        command = worker_command(self._directory, self._longer, "--parent", str(os.getpid()))
        environment = {**os.environ, **device_environment(number, self._count, self._devices)}
        (self._directory / "logs").mkdir(exist_ok=True)
        with open(self._directory / "logs" / f"worker-{number}.log", "ab") as log:
            # In a group of its own: a Ctrl-C at the terminal reaches it only through us.
            return subprocess.Popen(
                command, env=environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log, process_group=0
            )

    def poll(self) -> int | None:
        """Replaces workers that a signal has killed; returns the exit code when all are done, None before that."""
        for number, process in enumerate(self._processes):
            if (process.poll() or 0) < 0:
                self._processes[number] = self._start(number)
        codes = [process.poll() for process in self._processes]
        return None if None in codes else max(code or 0 for code in codes)

    @property
    def pids(self) -> list[int]:
        """The ids of the processes."""
        return [process.pid for process in self._processes]

    def stop(self) -> None:
        """Stops all workers; their trials save first."""
        for process in self._processes:
            with contextlib.suppress(OSError):
                process.send_signal(signal.SIGTERM)
        for process in self._processes:
            process.wait()

    def last_lines(self) -> str:
        """Returns the last line that a worker wrote, for errors."""
        for path in sorted((self._directory / "logs").glob("worker-*.log")):
            if lines := [line for line in path.read_text("utf-8", errors="replace").splitlines() if line.strip()]:
                return lines[-1].strip()
        return ""


def require_executor(name: str) -> None:
    """Refuses an executor that does not exist.

    Raises:
      UsageError: There is none of that name.
    """
    if name not in EXECUTORS:
        raise UsageError("there is no such executor", key="--on", received=name, remedy=f"use {', '.join(EXECUTORS)}")
