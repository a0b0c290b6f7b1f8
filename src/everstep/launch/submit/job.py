"""What an engine runs: `python -m everstep.launch.submit.job SNAPSHOT --max-restarts N -- COMMAND`.

It sees to it that what was submitted is what is run, has `everstep launch` supervise the command, passes signals on,
and notes in the snapshot when it began and how it ended.
"""

import argparse
import contextlib
import datetime
import logging
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from everstep import storage
from everstep.errors import UsageError
from everstep.launch.progress import newest_checkpoint
from everstep.launch.submit.data_files import difference, fingerprint
from everstep.launch.submit.snapshot import sources_changed
from everstep.run.launcher import ENDED, RECORD, STARTED, SUBMISSION
from everstep.run.layouts import export_record, loop_directories, results_file
from everstep.run.lock import RunLock

_ASKED_TO_END = 128 + signal.SIGTERM
_PASSED_ON = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)


def main(arguments: Sequence[str]) -> int:
    """Runs one job; returns its exit code."""
    end = list(arguments).index("--")
    asked = _parser().parse_args(arguments[:end])
    if asked.log:
        _log_to(Path(asked.log))
    logging.basicConfig(format="%(message)s")
    try:
        return Job(Path(asked.snapshot), arguments[end + 1 :], asked.max_restarts).run()
    except UsageError as error:
        print(f"everstep: error: {error}", file=sys.stderr)
        return 2


class Job:
    """One job of a queue.

    Args:
      snapshot: The folder of the snapshot, in that of the run.
      command: What to run.
      max_restarts: How often it may be started again.
    """

    def __init__(self, snapshot: Path, command: Sequence[str], max_restarts: int) -> None:
        self._snapshot, self._run_dir = snapshot, snapshot.parent.parent
        supervisor = [sys.executable, "-m", "everstep", "launch", "--max-restarts", str(max_restarts), "--"]
        self._command = [*supervisor, *command]
        self._record: dict[str, Any] = storage.read_json(snapshot / RECORD)
        self._child: subprocess.Popen[bytes] | None = None
        self._received: list[int] = []
        self._time_is_up = False

    def run(self) -> int:
        """Runs the command to its end; returns its exit code.

        Raises:
          UsageError: This very submission is running already.
        """
        with RunLock(self._snapshot):
            self._listen()
            self._note(STARTED, pid=os.getpid(), host=socket.gethostname())
            (self._snapshot / ENDED).unlink(missing_ok=True)
            before = self._kept()
            code = self._refused() or self._supervised()
            again = self._time_is_up and code == _ASKED_TO_END and self._kept() != before
            self._note(ENDED, code=code, requeued=again)
        if self._time_is_up:
            _requeue(again)
        return code

    def _listen(self) -> None:
        for number in _PASSED_ON:
            signal.signal(number, self._handle)

    def _handle(self, number: int, frame: object) -> None:
        if number == signal.SIGUSR1 and self._record["engine"] == "slurm":
            self._time_is_up = True
            number = signal.SIGTERM  # which every run answers by saving
        self._received.append(number)
        if self._child is not None:
            self._child.send_signal(number)

    def _refused(self) -> int:
        """Returns 2, and says why, where what was submitted is not what would be run; else 0."""
        os.chdir(self._record["root"])
        if self._record["data"] is not None:
            self._warn_of_data(Path(self._record["data_dir"]))
        if self._record["config"] is None and sources_changed(self._record, self._run_dir):
            _say(
                f"error: Python files below {self._record['root']!r} have changed since this was submitted; "
                f"they were as in {str(self._snapshot / 'sources')!r}: submit it again"
            )
            return 2
        return 0

    def _warn_of_data(self, folder: Path) -> None:
        told = difference(self._record["data"], fingerprint(folder)) if folder.exists() else "it is gone"
        if told is not None:
            _say(f"warning: the data in {str(folder)!r} has changed: {told}")

    def _supervised(self) -> int:
        environment = os.environ | {SUBMISSION: str(self._snapshot)}
        self._child = subprocess.Popen(self._command, env=environment, stdin=subprocess.DEVNULL)
        for number in self._received:  # that came before there was anybody to send them to
            self._child.send_signal(number)
        code = self._child.wait()
        return code if code >= 0 else 128 - code

    def _kept(self) -> tuple[Any, ...]:
        """Returns what a start of the run may bring further: where nothing has changed, another would be in vain."""
        done = [find(self._run_dir) is not None for find in (export_record, results_file)]
        return (*map(newest_checkpoint, loop_directories(self._run_dir)), *done)

    def _note(self, name: str, **values: Any) -> None:
        time = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
        with contextlib.suppress(OSError):  # a full disk is no reason to stop
            storage.write_json(self._snapshot / name, {"time": time, **values})


def _requeue(worth_it: bool) -> None:
    """Asks Slurm to run the job once more: its time is up, and there is more to do."""
    job = os.environ.get("SLURM_JOB_ID")
    if not worth_it or not job:
        _say("the time is up, and nothing new is saved: more --hours would help, or checkpoints more often")
        return
    _say(f"the time is up: job {job} goes back into the queue, and on from the newest checkpoint")
    with contextlib.suppress(OSError):
        subprocess.run(["scontrol", "requeue", job], check=False)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m everstep.launch.submit.job")
    parser.add_argument("snapshot")
    parser.add_argument("--max-restarts", type=int, default=0)
    parser.add_argument("--log", default="", help="Write to log-<pid>.out and .err in this folder.")
    return parser


def _log_to(folder: Path) -> None:
    for descriptor, suffix in ((1, "out"), (2, "err")):
        path = folder / f"log-{os.getpid()}.{suffix}"
        file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666)
        os.dup2(file, descriptor)
        os.close(file)


def _say(text: str) -> None:
    print(f"everstep: {text}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
