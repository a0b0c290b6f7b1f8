"""Runs of a project as processes of their own, to be killed.

Most of a short run's time goes into importing. So this file, run as a program, imports what a run needs, has started
nothing yet (one thread, no device, no database), and forks for every line that it reads. What is forked runs and ends
like any other process.
"""

import atexit
import contextlib
import gc
import hashlib
import json
import os
import random
import signal
import subprocess
import sys
import time
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

PHASES = ("start", "train", "export", "evaluate", "pages")
"""What a run does, in this order; `pages` is what comes after the numbers of the evaluation."""

PROGRAM = "import components_process as here; here.work(*here.sys.argv[1:])"


def work(name: str, root: str, data: str, action: str = "run") -> None:
    """What a process does: the command line's `everstep run`, or what a test has to know of an export."""
    from everstep.cli.main import main

    words = ["run", name, "--project-root", root, "--data-dir", data]
    if action == "digests":
        _write_digests(Path(root))
    else:
        sys.exit(main([*words, "--eval-only"] if action == "evaluate" else words))


def _write_digests(root: Path) -> None:
    """Writes what the exported weights are, whichever bytes the SavedModel has; here, where TensorFlow is imported."""
    import tensorflow as tf

    stored = tf.train.load_checkpoint(str(root / "runs" / "a" / "exported" / "savedmodel" / "variables" / "variables"))
    arrays = {key: stored.get_tensor(key) for key in stored.get_variable_to_shape_map() if key.startswith("variables/")}
    found = {key: hashlib.sha256(np.asarray(array).tobytes()).hexdigest() for key, array in arrays.items()}
    (root / "digests.json").write_text(json.dumps(found))


class Attempt:
    """A process that runs a project, started anew.

    Args:
      root: The project.
      data: Where the data is.
      tracking: Where MLflow is.
      run: The name of the run.
      action: `run` or `evaluate`.
    """

    def __init__(self, root: Path, data: Path, tracking: str, run: str = "a", action: str = "run") -> None:
        self.folder, self._output = root / "runs" / run, root / "output.txt"
        self.before = attempts(self.folder)
        self._begin([run, str(root), str(data), action], tracking)

    def _begin(self, words: list[str], tracking: str) -> None:
        path = os.pathsep.join([str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")])
        environment = {**os.environ, "MLFLOW_TRACKING_URI": tracking, "PYTHONPATH": path}
        with open(self._output, "a") as output:
            command = [sys.executable, "-c", PROGRAM, *words]
            self._process = subprocess.Popen(command, env=environment, stdout=output, stderr=output)
        self.pid = self._process.pid

    def code(self) -> int | None:
        """How it ended; None as long as it has not."""
        return self._process.poll()

    def output(self) -> str:
        """What it, and those before it, have written to standard output and error."""
        return self._output.read_text()

    def wait(self) -> int:
        """Waits for its end; returns the code, negative after a signal."""
        while (code := self.code()) is None:
            time.sleep(0.01)
        return code

    def end(self, how: signal.Signals) -> int:
        """Sends a signal and waits."""
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, how)
        return self.wait()

    def finish(self) -> None:
        """Waits for its end, which has to be a good one."""
        assert self.wait() == 0, self.output()

    def reach(self, phase: str) -> bool:
        """Waits until it is there, or beyond; tells whether the process is still alive."""
        while PHASES.index(phase_of(self.folder, self.before)) < PHASES.index(phase):
            if self.code() is not None:
                return False
            time.sleep(0.001)
        return self.code() is None


class Nursery:
    """Forks attempts from a process that has imported everything."""

    def __init__(self) -> None:
        environment = {**os.environ, "OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}
        command = [sys.executable, __file__]
        self._process = subprocess.Popen(
            command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def start(self, root: Path, data: Path, tracking: str, **options: Any) -> "Forked":
        """Starts an attempt; the arguments are those of `Attempt`."""
        return Forked(self, root, data, tracking, **options)

    def ask(self, **order: Any) -> Any:
        """Has the process do something, and returns its answer."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        print(json.dumps(order), file=self._process.stdin, flush=True)
        return json.loads(self._process.stdout.readline())

    def close(self) -> None:
        """Ends the process."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        self._process.wait()
        self._process.stdout.close()


class Forked(Attempt):
    """An attempt that need not import anything."""

    def __init__(self, nursery: Nursery, *arguments: Any, **options: Any) -> None:
        self._nursery, self._code = nursery, None
        super().__init__(*arguments, **options)

    def _begin(self, words: list[str], tracking: str) -> None:
        self.pid = self._nursery.ask(words=words, tracking=tracking, output=str(self._output))

    def code(self) -> int | None:
        if self._code is None:
            self._code = self._nursery.ask(wait=self.pid)
        return self._code


def attempts(folder: Path) -> int:
    """How often training was begun."""
    return len(_record(folder).get("attempts", ()))


def phase_of(folder: Path, attempts_before: int = 0) -> str:
    """Where a run is, by its files; one that trains counts from the first step of a new attempt."""
    if (folder / "reports" / "metrics.json").exists():
        return "pages"
    if (folder / "exported").is_dir():
        return "evaluate"
    record = _record(folder)
    if record.get("status") == "finished":
        return "export"
    begun = record.get("attempts", [])[attempts_before:]
    return "train" if begun and begun[-1]["first_step"] else "start"


def _record(folder: Path) -> dict[str, Any]:
    try:
        return json.loads((folder / "training" / "run.json").read_text())
    except FileNotFoundError:
        return {}


class Clock:
    """How long the phases of an uninterrupted run take, and random instants in them.

    Args:
      seed: What the instants depend on.
      share: Up to which share of a phase they are; little where the run that was watched had to compile and create what
        later ones find.
    """

    def __init__(self, seed: int, share: float) -> None:
        self._random, self._share, self.seconds = random.Random(seed), share, dict.fromkeys(PHASES, 0.0)

    def watch(self, attempt: Attempt) -> None:
        """Looks on until the attempt has ended."""
        times = [time.monotonic()]
        for phase in PHASES[1:]:
            attempt.reach(phase)
            times.append(time.monotonic())
        attempt.finish()
        times.append(time.monotonic())
        self.seconds = {phase: b - a for phase, a, b in zip(PHASES, times, times[1:], strict=False)}

    def wait_in(self, phase: str, attempt: Attempt, also: float = 0.0) -> str:
        """Waits for a random part of what the phase takes, at most until the attempt leaves it; returns where it is.

        Args:
          phase: Where the attempt is.
          attempt: It.
          also: Seconds that it takes to get there, where files of an earlier attempt make it look as if it were there.
        """
        end = time.monotonic() + self._random.uniform(0, self._share) * (also + self.seconds[phase])
        while (now := phase_of(attempt.folder, attempt.before)) == phase and time.monotonic() < end:
            if attempt.code() is not None:
                break
            time.sleep(0.001)
        return now


def _serve(lines: Iterator[str]) -> None:
    for line in lines:
        order = json.loads(line)
        if "wait" in order:
            pid, status = os.waitpid(order["wait"], os.WNOHANG)
            answer = os.waitstatus_to_exitcode(status) if pid else None
        elif (answer := os.fork()) == 0:
            _become(order)
        print(json.dumps(answer), flush=True)


def _become(order: dict[str, Any]) -> None:
    """In the fork: what a process of its own would have, and then its work."""
    output = os.open(order["output"], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    for number in (1, 2):
        os.dup2(output, number)
    os.environ["MLFLOW_TRACKING_URI"] = order["tracking"]
    signal.signal(signal.SIGINT, signal.default_int_handler)  # tests that are started in the background ignore it
    code = 0
    try:
        work(*order["words"])
    except SystemExit as end:
        code = int(end.code or 0)
    except BaseException:
        traceback.print_exc()
        code = 1
    atexit._run_exitfuncs()
    sys.stderr.flush()
    os._exit(code)  # taking apart all modules, page by page no longer shared, takes longer than a run


def _import_everything() -> None:
    import mlflow.store.tracking.sqlalchemy_store
    import mlflow.tracking
    import PIL.Image
    import tensorflow

    import everstep.experiment
    import everstep.projects.commands.run
    import everstep.projects.components.orchestrator

    del mlflow, PIL, tensorflow, everstep
    tasks = Path("/proc/self/task").iterdir()
    others = [(task / "comm").read_text().strip() for task in tasks if task.name != str(os.getpid())]
    if set(others) - {"jemalloc_bg_thd"}:  # Arrow's memory, which knows of forks
        sys.exit(f"threads after importing: {others}; a fork would not have them")


if __name__ == "__main__":
    _import_everything()
    gc.freeze()
    _serve(iter(sys.stdin.readline, ""))
