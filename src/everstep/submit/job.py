"""The program that an executor runs: `python -m everstep.submit.job SNAPSHOT --max-restarts N -- COMMAND`.

Its other options but --log are those of `everstep launch`, as which it runs the command.

It checks that what runs is what was submitted, runs the command under `everstep launch`, passes signals on, and records
in the snapshot when it began and how it ended.
"""

import argparse
import contextlib
import datetime
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from everstep import storage
from everstep.checkpoint import newest_step
from everstep.errors import UsageError
from everstep.run import (
    ENDED,
    RECORD,
    STARTED,
    SUBMISSION,
    RunLock,
    exit_code,
    export_record,
    loop_directories,
    results_file,
    run_program,
    signals_handled,
)
from everstep.submit.snapshot import data_difference, data_fingerprint, recorded_executor, sources_changed

_STOPPED = 128 + signal.SIGTERM
_FORWARDED = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)


def main(arguments: Sequence[str]) -> int:
    """Runs one job; returns its exit code."""
    parser = argparse.ArgumentParser(prog="python -m everstep.submit.job")
    parser.add_argument("snapshot")
    parser.add_argument("--max-restarts", type=int, default=0)
    parser.add_argument("--log", default="", help="Write to log-<pid>.out and .err in this folder.")
    end = list(arguments).index("--")
    options, of_launch = parser.parse_known_args(arguments[:end])
    if options.log:
        for descriptor, suffix in ((1, "out"), (2, "err")):
            path = Path(options.log) / f"log-{os.getpid()}.{suffix}"
            file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666)
            os.dup2(file, descriptor)
            os.close(file)
    launch = ["--max-restarts", str(options.max_restarts), *of_launch]
    return run_program(lambda: Job(Path(options.snapshot), arguments[end + 1 :], launch).run(), arguments)


class Job:
    """One job of a queue.

    Args:
      snapshot: The folder of the snapshot, inside the run's folder.
      command: Program and arguments.
      options: The options of `everstep launch`.
    """

    def __init__(self, snapshot: Path, command: Sequence[str], options: Sequence[str]) -> None:
        self._snapshot, self._run_dir = snapshot, snapshot.parent.parent
        supervisor = [sys.executable, "-m", "everstep", "launch", *options, "--"]
        self._command = [*supervisor, *command]
        self._record: dict[str, Any] = storage.read_json(snapshot / RECORD)
        self._child: subprocess.Popen[bytes] | None = None
        self._received: list[int] = []
        self._time_is_up = False

    def run(self) -> int:
        """Runs the command to its end; returns its exit code.

        Raises:
          UsageError: The same submission is already running.
        """
        with RunLock(self._snapshot), signals_handled(_FORWARDED, self._handle):
            self._write(STARTED, pid=os.getpid(), host=socket.gethostname())
            (self._snapshot / ENDED).unlink(missing_ok=True)
            before = self._progress()
            try:
                self._check_unchanged()
                code = self._supervise()
            except UsageError as error:
                code = exit_code(error)
            requeued = self._time_is_up and code == _STOPPED and self._progress() != before
            self._write(ENDED, code=code, requeued=requeued)
            if self._time_is_up:
                _requeue(requeued)
        return code

    def _handle(self, number: int, frame: object) -> None:
        if number == signal.SIGUSR1 and recorded_executor(self._record) == "slurm":
            self._time_is_up = True
            number = signal.SIGTERM  # on which every run saves
        self._received.append(number)
        if self._child is not None:
            self._child.send_signal(number)

    def _check_unchanged(self) -> None:
        """Warns if the data has changed since the submission.

        Raises:
          UsageError: The code of a command has changed, and there is no copy that it could be run from.
        """
        os.chdir(self._record["root"])
        if self._record["data"] is not None:
            folder = Path(self._record["data_dir"])
            found = data_difference(self._record["data"], data_fingerprint(folder)) if folder.exists() else "it is gone"
            if found is not None:
                _print(f"warning: the data in {str(folder)!r} has changed: {found}")
        if self._record["config"] is None and sources_changed(self._record, self._run_dir):
            raise UsageError(
                "Python files have changed since this was submitted",
                key=self._record["root"],
                remedy=f"submit it again; {str(self._snapshot / 'sources')!r} has the files as submitted",
            )

    def _supervise(self) -> int:
        environment = os.environ | {SUBMISSION: str(self._snapshot)}
        self._child = subprocess.Popen(self._command, env=environment, stdin=subprocess.DEVNULL)
        for number in self._received:  # before there was a process to send them to
            self._child.send_signal(number)
        code = self._child.wait()
        return code if code >= 0 else 128 - code

    def _progress(self) -> tuple[Any, ...]:
        """Returns what a job may advance: if nothing of it has changed, requeueing the job is pointless."""
        done = [find(self._run_dir) is not None for find in (export_record, results_file)]
        return (*map(newest_step, loop_directories(self._run_dir)), *done)

    def _write(self, name: str, **values: Any) -> None:
        time = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
        with contextlib.suppress(OSError):  # a full disk is no reason to stop
            storage.write_json(self._snapshot / name, {"time": time, **values})


def _requeue(worthwhile: bool) -> None:
    """Requests that Slurm runs the job once more: its time is up, and the run is not finished."""
    job = os.environ.get("SLURM_JOB_ID")
    if not worthwhile or not job:
        _print("the time is up, and nothing new is saved: request more --hours, or save checkpoints more often")
        return
    _print(f"the time is up: job {job} is requeued, and resumes from the newest checkpoint")
    with contextlib.suppress(OSError):
        subprocess.run(["scontrol", "requeue", job], check=False)


def _print(text: str) -> None:
    print(f"everstep: {text}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
