"""Runs of `gang_experiment` as several processes, started as a user starts them, and what can happen to them."""

import csv
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from everstep import gang
from everstep.run.lock import last_beat

HERE = Path(__file__).parent
WORDS = ["gang/small", "--import=gang_experiment", "--backend=jax", "--no-export"]


def start(
    directory: Path, *words: str, command: tuple[str, ...] = ("train",), environment: Mapping[str, str] | None = None
) -> subprocess.Popen[str]:
    """Starts one process of the command line, with its output in a file beside the run directory."""
    log = open(directory.with_name(f"{directory.name}-{time.monotonic_ns()}.log"), "w+")  # noqa: SIM115
    path = os.pathsep.join(filter(None, [str(HERE), os.environ.get("PYTHONPATH")]))
    process = subprocess.Popen(
        [sys.executable, "-m", "everstep", *command, *WORDS, f"--model-dir={directory}", *words],
        env={**os.environ, "PYTHONPATH": path, **(environment or {})},
        stdout=log,
        stderr=subprocess.STDOUT,
        text=True,
    )
    process.log = log  # type: ignore[attr-defined]
    return process


def launch(
    directory: Path, size: int | str, *words: str, restarts: int = 0, environment: Mapping[str, str] | None = None
) -> subprocess.Popen[str]:
    """Starts `everstep launch --processes`."""
    command = ("launch", f"--processes={size}", f"--max-restarts={restarts}", "--backoff=0.1")
    return start(directory, *words, command=command, environment=environment)


def by_hand(
    directory: Path,
    port: int,
    size: int,
    *words: str,
    ranks: Sequence[int] | None = None,
    seconds: int = 100,
    slurm: bool = False,
) -> list[Any]:
    """Starts the processes one by one, or some of them, with coordinates in the environment: ours, or as srun sets."""
    return [
        start(directory, *words, environment={**coordinates(port, rank, size, slurm), gang.JOIN_SECONDS: str(seconds)})
        for rank in (range(size) if ranks is None else ranks)
    ]


def coordinates(port: int, rank: int, size: int, slurm: bool) -> dict[str, str]:
    """Returns the variables by which a process finds the others; Slurm has no port, but a job."""
    if not slurm:
        own = {gang.PROCESS_ID: str(rank), gang.NUM_PROCESSES: str(size)}
        return {gang.COORDINATOR: f"127.0.0.1:{port}", **own}
    step = {"SLURM_STEP_ID": "0", "SLURM_STEP_NUM_TASKS": str(size), "SLURM_STEP_NODELIST": "localhost"}
    return {"SLURM_JOB_ID": str(port), "SLURM_PROCID": str(rank), **step}


def ended(process: Any, timeout: float = 900) -> tuple[int, str]:
    """Waits for a process; returns its exit code and what it printed."""
    try:
        code = process.wait(timeout)
    finally:
        if process.poll() is None:
            process.kill()
        process.wait()
        process.log.seek(0)
        text = process.log.read()
        process.log.close()
    return code, text


def pids(directory: Path) -> list[int]:
    """Returns the processes of the current attempt, by rank."""
    return [one["pid"] for one in json.loads((directory / "processes" / "members.json").read_text())["members"]]


def wait_for(condition: Callable[[], Any], process: Any, seconds: float = 600) -> Any:
    """Polls until a condition is true, while a process runs."""
    end = time.monotonic() + seconds
    while not (found := condition()):
        assert process.poll() is None, ended(process)
        assert time.monotonic() < end
        time.sleep(0.01)
    return found


def at_step(directory: Path, step: int, since: float) -> Callable[[], bool]:
    """Returns a condition: whether the attempt that began at `since` has done so many steps."""
    return lambda: (beat := last_beat(directory)) is not None and beat[0] >= step and beat[1] > since


def is_saving(directory: Path) -> bool:
    """Whether a checkpoint is half written."""
    folder = directory / "checkpoints"
    return folder.is_dir() and any(name.startswith(".") for name in os.listdir(folder))


def hit(directory: Path, process: Any, rank: int, number: int = signal.SIGKILL, step: int = 60, saving: bool = False):
    """Sends a signal to one of the processes, at a step or during a save after it; returns its pid."""
    wait_for(at_step(directory, step, 0.0), process)
    if saving:
        wait_for(lambda: is_saving(directory), process)
    pid = pids(directory)[rank]
    os.kill(pid, number)
    return pid


def record(directory: Path) -> dict[str, Any]:
    """Returns the content of `run.json`."""
    return json.loads((directory / "run.json").read_text())


def losses(directory: Path) -> list[tuple[int, float]]:
    """Returns the training loss by step, as `history.csv` has it."""
    rows = csv.DictReader((directory / "history.csv").read_text().splitlines())
    return [(int(row["step"]), float(row["training_loss"])) for row in rows if row.get("training_loss")]
