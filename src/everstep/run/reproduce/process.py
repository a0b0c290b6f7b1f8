"""The process in which a run is done again; one that only a part is wanted of is asked to end when it has come so far.

How long a run is to be may alter what it computes, so that its configuration is never changed to make it shorter.
"""

import collections
import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from everstep.run.environment import with_settings
from everstep.run.lock import last_beat
from everstep.run.reproduce.repeating import Missing, Repetition

_ERROR = "everstep: error: "
_LEFT_OUT = ("MLFLOW_TRACKING_URI", "KERAS_BACKEND", "EVERSTEP_SUBMISSION", "EVERSTEP_SUPERVISOR")
_GONE = re.compile(r"(FileNotFoundError|ModuleNotFoundError|ImportError|NotADirectoryError)\b")
_LAST_LINES = 200
_POLL_SECONDS = 0.1


def carry_out(repetition: Repetition, show: bool, until: int | None = None, python_path: str = "") -> None:
    """Runs the command, in a process of its own.

    Args:
      repetition: It.
      show: Whether people are to see what it says on the way.
      until: The step after which it may end; None to let it end by itself.
      python_path: Where it looks for modules first.

    Raises:
      Missing: It cannot be done: code or data is not there any more, or it fails.
    """
    kept: collections.deque[str] = collections.deque(maxlen=_LAST_LINES)
    with _started(repetition, python_path) as process, _ended_after(process, repetition.result, until) as asked:
        for line in process.stderr or ():
            kept.append(line.rstrip("\n"))
            if show and not line.startswith(_ERROR):  # what it failed for is said in the end
                print(line, end="", file=sys.stderr)
    if process.returncode and not asked.is_set():
        raise _failure(process.returncode, [line for line in kept if line.strip()])


def _started(repetition: Repetition, python_path: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "everstep", *repetition.words],
        cwd=repetition.folder,
        env=_environment(repetition, python_path),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        errors="replace",
    )


def _environment(repetition: Repetition, python_path: str) -> dict[str, str]:
    mine = {name: value for name, value in os.environ.items() if name not in _LEFT_OUT}
    paths = [path for path in (python_path, mine.get("PYTHONPATH", "")) if path]
    found = with_settings(mine, repetition.settings)
    return {**found, "PYTHONPATH": os.pathsep.join(paths)} if paths else found


@contextmanager
def _ended_after(process: subprocess.Popen[str], run: Path, until: int | None) -> Iterator[threading.Event]:
    """Inside the block the process is asked to end, once, when it is beyond a step: that one is evaluated and saved.

    Yields:
      Set when it was asked.
    """
    asked, over = threading.Event(), threading.Event()

    def watch() -> None:
        while until is not None and not over.wait(_POLL_SECONDS):
            beat = last_beat(run)
            if beat is not None and beat[0] > until and process.poll() is None:
                asked.set()
                process.send_signal(signal.SIGTERM)
                return

    watcher = threading.Thread(target=watch, name="reproduce", daemon=True)
    watcher.start()
    try:
        yield asked
    finally:
        over.set()
        watcher.join()


def _failure(code: int, lines: list[str]) -> Missing:
    said = [line.removeprefix(_ERROR) for line in lines if line.startswith(_ERROR)]
    reason = said[-1] if said else (lines[-1] if lines else f"exit code {code}")
    if code == 2 or _GONE.match(reason):
        return Missing(reason)
    return Missing(f"it failed when it was done again: {reason}")
