"""A worker: takes a trial, runs it in a process of its own, follows its metrics, stores its result, takes the next.

`python -m everstep.sweeps.worker DIRECTORY` is one worker, on any machine that reaches the sweep's storage.
Killed, it loses nothing: its trial resumes from the newest checkpoint, here or elsewhere.
"""

import argparse
import contextlib
import functools
import logging
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import FrameType
from typing import Any

from everstep import liveness, redaction, report, storage
from everstep.config import parse_override
from everstep.errors import NOTHING, UsageError, nearest, plain_text
from everstep.launch import ExitStatus, record_exit_reason
from everstep.run import (
    PruningListener,
    is_held,
    listen_to_trials,
    loop_directory,
    pruning,
    read,
    reported_error,
    run_program,
    saved_step,
    signals_handled,
)
from everstep.sweeps import live, page
from everstep.sweeps.definition import Definition
from everstep.sweeps.function import call_function
from everstep.sweeps.parent_run import ParentRun
from everstep.sweeps.study import HEARTBEAT_SECONDS, REASON, Claim, SweepStudy
from everstep.tracking import SWEEP, TRIAL, default_uri

logger = logging.getLogger(__name__)

PROBLEM = "problem.json"
"""The file in a sweep's directory with what ends the whole sweep, a `SweepRefused`."""

_DONE, _FAILED, _BAD_INPUT = 0, 1, 2
_PLAIN_RUNS = ("experiment", "script")  # whose trials are run directories of the loop, and nothing else
_MAX_STALLS = 3
_POLL_SECONDS = 0.1
_PAUSE_SECONDS = 0.5  # between two looks for a trial, while others are at work

Function = Callable[..., Any]


class WorkerStopped(Exception):
    """A stop was requested; the trial's state is saved, and the trial waits for a worker."""


class SweepRefused(UsageError):
    """What would end every trial: a metric that they do not log, an option that the script does not have."""


class Worker:
    """Runs trials until there are none.

    Args:
      study: The sweep's study.
      longer: Overrides for trials that train an earlier trial longer, such as `trainer.train_steps=2000`.
      waits: Whether to wait, when no trial is left to take, for those of other workers, to resume the ones that are
        killed.
      function: A function to call in this process, instead of a process for each trial.
      parent: The process that started this one; without it, the worker stops.

    Attributes:
      study: The sweep's study.
      stop_signal: The first signal that requested a stop; 0 if none did.
    """

    def __init__(
        self,
        study: SweepStudy,
        longer: Sequence[str] = (),
        waits: bool = True,
        function: Function | None = None,
        parent: int | None = None,
    ) -> None:
        self.study, self._longer, self._waits = study, list(longer), waits
        self._function, self._parent = function, parent
        self._target, self._space = study.definition.target, study.definition.space
        self._stop = threading.Event()
        self.stop_signal = 0

    def stop(self, number: int = 0, frame: FrameType | None = None) -> None:
        """Requests a stop: the trial saves its state first. It is a signal handler, too."""
        self.stop_signal = self.stop_signal or number
        self._stop.set()

    def run(self) -> None:
        """Runs trials until none is left.

        Raises:
          WorkerStopped: A stop was requested.
          UsageError: No trial can be compared: the metric does not exist.
        """
        while not self.should_stop():
            claim = self.study.claim()
            if claim is not None:
                try:
                    self._run_trial(claim)
                finally:
                    claim.release()
            elif not self._waits or self.study.is_done():
                return
            else:
                self._stop.wait(_PAUSE_SECONDS)
        raise WorkerStopped

    def should_stop(self) -> bool:
        """Returns whether a stop is requested, or the process that started this one is gone."""
        return self._stop.is_set() or (self._parent is not None and liveness.is_orphaned(self._parent))

    # ---- one trial ---------------------------------------------------------------------------------------------------

    def _run_trial(self, claim: Claim) -> None:
        directory = self.study.directory
        owner = claim.number if claim.continues is None else claim.continues  # the trial whose directory it trains in
        run_dir = self._target.run_dir(directory, owner)
        numbers = live.TrialMetrics(run_dir)
        if claim.continues is None and self._target.is_complete(run_dir):  # killed before its result was stored
            self._complete(claim, numbers, run_dir)
            return
        self._target.prepare(directory, run_dir, owner, self._space, claim.values)
        if self._function is not None:
            self._call(claim, numbers, run_dir, self._function)
            return
        longer = self._longer if claim.continues is not None else []
        command = self._target.command(run_dir, self._space, claim.values, longer)
        stalls = 0
        while True:
            saved, since = saved_step(run_dir), time.time()
            log = directory / "logs" / f"{claim.number}.log"
            attempt = _TrialProcess(self, claim, numbers, command, self._target.variables(run_dir), log)
            status = attempt.run()
            record_exit_reason(loop_directory(run_dir), status.reason, since)
            numbers.read()
            if status.exit_code == _DONE:
                self._complete(claim, numbers, run_dir)
                return
            if attempt.pruned:
                self._end(claim, "PRUNED", numbers, run_dir)
                return
            if self.should_stop():
                raise WorkerStopped
            if is_held(loop_directory(run_dir)):  # somebody trains it by hand
                self._stop.wait(_PAUSE_SECONDS)
                continue
            if status.exit_code in (_FAILED, _BAD_INPUT):
                error = attempt.error() or str(status)
                self._fail(claim, error, numbers, run_dir)
                if self._target.refuses_all(error):
                    raise SweepRefused(error, key="KEY=VALUES", remedy="name the keys as the script names its options")
                return
            progressed = (saved_step(run_dir) or 0) > (saved or 0)
            stalls = 0 if progressed else stalls + 1
            if stalls > _MAX_STALLS:
                self._fail(claim, f"{_MAX_STALLS} restarts made no progress: it {status}", numbers, run_dir)
                return

    def _call(self, claim: Claim, numbers: live.TrialMetrics, run_dir: Path, function: Function) -> None:
        try:
            longer = dict(map(parse_override, self._longer if claim.continues is not None else ()))
            call_function(function, {**self._space.fixed, **claim.values, **longer}, run_dir)
        except Exception as error:
            self._fail(claim, f"{type(error).__name__}: {plain_text(error)}", numbers, run_dir)
        else:
            numbers.read()
            self._complete(claim, numbers, run_dir)

    # ---- how a trial ends --------------------------------------------------------------------------------------------

    def _complete(self, claim: Claim, numbers: live.TrialMetrics, run_dir: Path) -> None:
        definition = self.study.definition
        numbers.read()
        values = []
        names = self.study.choose_metrics(numbers.usual)
        for metric, mode in zip(names, definition.modes, strict=True):
            points = numbers.points(metric)
            if not points and (reason := self._target.without_result(run_dir)):
                self._fail(claim, reason, numbers, run_dir)
                return
            if not points and metric not in definition.metrics:
                self._fail(claim, f"does not log {metric or 'a loss'}, by which trials are compared", numbers, run_dir)
                return
            if not points:
                self.metric_missing(claim, metric, numbers)
            found = live.last(points) if definition.is_multi_objective else live.best(points, mode)
            if found is None:
                self._fail(claim, f"{metric} is never a finite number", numbers, run_dir)
                return
            values.append(found.value)
        # The pruner compares later trials with it.
        self.study.should_prune(claim, [point.value for point in numbers.points(names[0])])
        self._end(claim, "COMPLETE", numbers, run_dir, values)

    def _fail(self, claim: Claim, reason: str, numbers: live.TrialMetrics, run_dir: Path) -> None:
        self.study.note(claim, **{REASON: redaction.text(reason)[:500]})
        self._end(claim, "FAIL", numbers, run_dir)

    def _end(
        self, claim: Claim, state: str, numbers: live.TrialMetrics, run_dir: Path, values: Sequence[float] | None = None
    ) -> None:
        record: dict[str, Any] = {}
        with contextlib.suppress(UsageError):  # a function need not train a run
            record = read(loop_directory(run_dir))
            _write_report(run_dir)
        facts = {"steps": numbers.step, "train_steps": numbers.train_steps, "digest": record.get("digest")}
        self.study.note(claim, facts=facts)
        self.study.tell(claim, state, values)
        if not self._waits:  # nobody else draws the page
            page.write(self.study, running=not self.study.is_done())

    def metric_missing(self, claim: Claim, metric: str, numbers: live.TrialMetrics) -> None:
        """Ends the sweep: no trial logs the metric.

        Raises:
          SweepRefused: Always; names the metrics that there are.
        """
        names = list(dict.fromkeys(numbers.names))
        known = ", ".join(names) or "none"
        remedy = nearest(metric, names) if names else ""
        near = f"{remedy} " if remedy.startswith("did you mean") else ""
        self.study.note(claim, **{REASON: f"it does not log {metric!r}"})
        self.study.tell(claim, "FAIL")
        raise SweepRefused(
            "no trial logs this metric", key="--metric", received=metric, remedy=f"{near}it logs {known}"
        )

    # ---- what an attempt calls while the trial trains ----------------------------------------------------------------

    def on_numbers(self, claim: Claim, numbers: live.TrialMetrics) -> bool:
        """Looks at new numbers of a trial; returns whether it should be pruned.

        Raises:
          SweepRefused: It has evaluated, and the metric was not among the results.
        """
        metric = self.study.metrics[0]
        points = numbers.points(metric) if metric else []
        if not points and metric and self._target.kind in _PLAIN_RUNS and numbers.is_evaluated:
            self.metric_missing(claim, metric, numbers)
        return self.study.should_prune(claim, [point.value for point in points])

    def on_heartbeat(self, claim: Claim) -> None:
        """Writes a heartbeat for the trial."""
        self.study.write_heartbeat(claim)


class _TrialProcess:
    """One process of a trial, from its start to its end.

    Attributes:
      pruned: Whether it was stopped because it does worse than others.
    """

    def __init__(
        self,
        worker: Worker,
        claim: Claim,
        numbers: live.TrialMetrics,
        command: Sequence[str],
        variables: Mapping[str, str],
        log: Path,
    ) -> None:
        self._worker, self._claim, self._numbers = worker, claim, numbers
        self._command, self._variables, self._log, self._log_start = list(command), variables, log, 0
        self.pruned = False

    def run(self) -> ExitStatus:
        """Runs the process to its end; stops it if it should be pruned, or if a stop is requested."""
        if not self._worker.study.prunes(self._claim):
            return self._run(None)
        with listen_to_trials() as listener:
            return self._run(listener)

    def _run(self, listener: PruningListener | None) -> ExitStatus:
        study = self._worker.study
        name = study.directory.name
        environment = {SWEEP: name, TRIAL: str(self._claim.number), "WANDB_RUN_GROUP": name}
        target = study.definition.target
        if target.kind in _PLAIN_RUNS:  # all trials in one store, that of the folder with the sweep
            environment |= {"MLFLOW_TRACKING_URI": default_uri(study.directory)}
        environment |= self._variables
        if listener is not None:
            environment |= {pruning.VARIABLE: listener.path}
        self._log.parent.mkdir(exist_ok=True)
        with open(self._log, "ab") as log:
            self._log_start = log.tell()  # before it are earlier attempts
            process = subprocess.Popen(
                self._command,
                cwd=target.root or None,
                env={**os.environ, **environment},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                process_group=0,
                pass_fds=(self._claim.lock,),  # the trial is taken as long as this process lives, even without us
            )
        try:
            return self._follow(process, listener)
        except BaseException:
            process.terminate()
            process.wait()
            raise

    def _follow(self, process: subprocess.Popen[bytes], listener: PruningListener | None) -> ExitStatus:
        stopped, beat = False, time.monotonic()
        while process.poll() is None:
            with self._pause(process, listener):  # a trial that has evaluated waits until the end of the block
                if not stopped and self._worker.should_stop():
                    stopped = True
                    process.terminate()
                if not stopped and self._numbers.read() and self._worker.on_numbers(self._claim, self._numbers):
                    stopped = self.pruned = True
                    process.terminate()
            if time.monotonic() - beat > HEARTBEAT_SECONDS:
                beat = time.monotonic()
                self._worker.on_heartbeat(self._claim)
        return ExitStatus(process.returncode)

    @contextlib.contextmanager
    def _pause(self, process: subprocess.Popen[bytes], listener: PruningListener | None) -> Iterator[None]:
        """Waits for news of the trial: its end, an evaluation, or the next look at its numbers."""
        if listener is None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(_POLL_SECONDS)
            yield
        else:
            with listener.waiting_trial(_POLL_SECONDS):
                yield

    def error(self) -> str:
        """Returns why the process failed, as it has written it; empty if it wrote nothing."""
        with contextlib.suppress(OSError), open(self._log, "rb") as log:
            log.seek(self._log_start)
            return reported_error(log.read().decode("utf-8", errors="replace").splitlines())
        return ""


def _write_report(run_dir: Path) -> None:
    """Writes the report of a trial's run, to which the page of the sweep links; a trial without one is no failure."""
    try:
        report.write([run_dir])
    except (UsageError, OSError, ValueError, KeyError, TypeError) as error:
        logger.warning("%s: no report is written: %s", run_dir, error)


def main(arguments: Sequence[str]) -> int:
    """Runs one worker; returns its exit code."""
    parser = argparse.ArgumentParser(prog="python -m everstep.sweeps.worker")
    parser.add_argument("directory", type=Path)
    parser.add_argument("--parent", type=int, help="stop when this process is no longer the parent")
    parser.add_argument(
        "--no-wait",
        action="store_true",
        help="end when no trial is left to take, although others run",
    )
    parser.add_argument("--longer", action="append", default=[], metavar="KEY=VALUE")
    options = parser.parse_args(arguments)
    return run_program(functools.partial(_work, options))


def _work(options: argparse.Namespace) -> int:
    directory = options.directory.resolve()
    study = SweepStudy(directory, Definition.load(directory))
    worker = Worker(study, options.longer, waits=not options.no_wait, parent=options.parent)
    try:
        with signals_handled((signal.SIGTERM, signal.SIGINT, signal.SIGUSR1), worker.stop):
            worker.run()
        if options.no_wait:
            ParentRun(study).update()
    except WorkerStopped:
        if worker.stop_signal == signal.SIGUSR1:
            _requeue()
        return 128 + signal.SIGTERM
    except SweepRefused as error:
        (problem,) = error.problems
        found = {name: getattr(problem, name) for name in ("reason", "key", "received", "remedy")}
        known = {name: value for name, value in found.items() if value is not NOTHING}
        storage.write_json(directory / PROBLEM, known)
        raise
    return 0


def _requeue() -> None:
    """Requests that Slurm runs this task of the array once more: its time is up, and trials are left."""
    if job := os.environ.get("SLURM_ARRAY_JOB_ID"):
        task = f"{job}_{os.environ.get('SLURM_ARRAY_TASK_ID', '0')}"
        with contextlib.suppress(OSError):
            subprocess.run(["scontrol", "requeue", task], check=False)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
