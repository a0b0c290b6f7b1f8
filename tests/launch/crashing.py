"""Commands that count how often they were started, and the supervisor as a process of its own."""

import contextlib
import subprocess
import sys
import time
from pathlib import Path

COUNT = """
import os, pathlib, signal, sys, time
log = pathlib.Path("starts")
log.write_text(log.read_text() + "x" if log.exists() else "x")
number = len(log.read_text())

def save(run, step):
    folder = pathlib.Path(run, "checkpoints", str(step))
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "manifest.json").touch()
"""


def child(script, before=COUNT):
    """Returns a command that runs `script`, in which `number` counts its starts from 1."""
    return [sys.executable, "-c", before + script]


def save(run, step):
    """Writes what makes a checkpoint complete; `save` in a script of `child` does the same."""
    folder = Path(run, "checkpoints", str(step))
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "manifest.json").touch()


def starts():
    """Returns how often the command was started."""
    return len(Path("starts").read_text())


@contextlib.contextmanager
def supervised(command, max_restarts=5, backoff=0.05, ignoring="", **options):
    """Runs the supervisor as a process of its own."""
    arguments = f"{command!r}, {max_restarts}, {backoff}"
    script = f"import sys; from everstep.launch.supervisor import supervise; sys.exit(supervise({arguments}))"
    trap = ["sh", "-c", f"trap '' {ignoring}; exec \"$@\"", "sh"] if ignoring else []
    process = subprocess.Popen([*trap, sys.executable, "-c", script], **options)
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def wait_for(name, text=""):
    """Waits until a file contains `text`; returns its content."""
    deadline = time.monotonic() + 300
    while not (Path(name).exists() and text in Path(name).read_text()):
        assert time.monotonic() < deadline
        time.sleep(0.02)
    return Path(name).read_text()
