"""Restarting a command when it dies, as long as restarts make progress."""

import contextlib
import dataclasses
import math
import os
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from everstep import redaction
from everstep.checkpoint import newest_step
from everstep.errors import UsageError
from everstep.launch.child import Child, ExitStatus, SignalForwarding, Supervised
from everstep.launch.progress import RunProgress, read_progress, record_exit_reason
from everstep.run import SUPERVISOR, announced

_DONE, _BAD_INPUT = 0, 2
_MAX_STALLS = 3
_LONGEST_PAUSE = 60.0
_LONG_LIFE = 300.0


def supervise(
    command: Sequence[str],
    max_restarts: int,
    backoff: float = 1.0,
    start: Callable[[Sequence[str], Mapping[str, str]], Supervised] = Child,
) -> int:
    """Runs a command, restarts it when it dies, and returns the exit code to end with.

    It is not restarted

    - when it is done (0) or was given bad input (2);
    - when it requests another machine, by its requeue exit code;
    - when a hook of the run stopped it, as `StopAt` does at a time of day;
    - after a signal to this process, which is passed on, if that was a request to stop (see
      `SignalForwarding.stop_requested`);
    - after three restarts in a row without progress, a crash loop that more restarts would not end. A diagnosis is
      printed.

    Otherwise it is restarted after a pause, which doubles with every restart without progress, up to a minute. Progress
    is a new checkpoint in any of the directories that the command trains in, one after the other. For a command that
    announces no run directory it is a life of five minutes.

    Args:
      command: Program and arguments.
      max_restarts: The maximum number of restarts.
      backoff: The first pause, in seconds.
      start: Starts the command in an environment: as one process of this machine, or as several that train together
        and are restarted together (`child_gang.py`, `slurm_gang.py`, `ray_gang.py`).

    Returns:
      The command's last exit code; 128 + the number of the signal that ended it.

    Raises:
      UsageError: The command cannot be started, or a number is out of range.
    """
    if not command:
        raise UsageError(
            "no command is given", key="COMMAND", remedy="put it after --, as in: everstep launch -- python train.py"
        )
    if max_restarts < 0:
        raise UsageError("must be 0 or more", key="--max-restarts", received=max_restarts)
    if not (math.isfinite(backoff) and backoff >= 0):
        raise UsageError("must be 0 or more seconds", key="--backoff", received=backoff)
    with tempfile.TemporaryDirectory(prefix="everstep-") as folder, SignalForwarding() as signals:
        link = Path(folder) / "run.json"
        environment = os.environ | {SUPERVISOR: str(link)}
        return _Supervisor(lambda: start(command, environment), max_restarts, backoff, link, signals).run()


@dataclasses.dataclass(frozen=True)
class _ChildAttempt:
    """One life of the command.

    Attributes:
      status: How it ended.
      seconds: How long it ran.
      last_lines: The last lines it wrote to standard error.
      model_dir: The directory of the run it announced; None if it announced none.
      progress: How far that run is.
      requeue_exit_code: The exit code that requests another machine; None if there is none.
      stop_reason: Why a hook of the run stopped it; None if none did.
    """

    status: ExitStatus
    seconds: float
    last_lines: list[str]
    model_dir: Path | None = None
    progress: RunProgress = RunProgress()
    requeue_exit_code: int | None = None
    stop_reason: str | None = None


class _Supervisor:
    """Runs attempts until one is final or restarts make no progress.

    Args:
      start: Starts the command.
      max_restarts: The maximum number of restarts.
      backoff: The first pause, in seconds.
      link: The file to which the command announces its run.
      signals: Passes signals on to the command.
    """

    def __init__(
        self,
        start: Callable[[], Supervised],
        max_restarts: int,
        backoff: float,
        link: Path,
        signals: SignalForwarding,
    ) -> None:
        self._start, self._max_restarts, self._backoff = start, max_restarts, backoff
        self._link, self._signals = link, signals
        self._ends: list[ExitStatus] = []
        self._stalls = 0  # restarts in a row without progress
        self._saved: dict[Path, int] = {}  # the newest checkpoint seen in each run directory

    def run(self) -> int:
        while True:
            attempt = self._attempt()
            if self._is_final(attempt):
                return attempt.status.exit_code
            lived_long = attempt.model_dir is None and attempt.seconds >= _LONG_LIFE
            progressed = self._has_new_checkpoint(attempt.model_dir) or lived_long
            self._stalls = self._stalls + 1 if self._ends and not progressed else 0
            self._ends.append(attempt.status)
            if self._stalls >= _MAX_STALLS:
                _print(_diagnosis(f"{_MAX_STALLS} restarts in a row made no progress", attempt, self._ends))
                return attempt.status.exit_code
            if len(self._ends) > self._max_restarts:
                reason = f"the limit of {self._max_restarts} restarts (--max-restarts) is reached"
                _print(_diagnosis(reason, attempt, self._ends))
                return attempt.status.exit_code
            seconds = pause(self._backoff, self._stalls)
            _print(
                f"{attempt.status.who} {attempt.status}{_position(attempt.progress)}; "
                f"restart {len(self._ends)} of {self._max_restarts} in {seconds:g} s"
            )
            self._signals.sleep(seconds)
            if (number := self._signals.stop_requested()) is not None:
                _print(f"not restarted: this process received {number.name}")
                return 128 + number

    def _attempt(self) -> _ChildAttempt:
        """Runs the command once."""
        since, begin = time.time(), time.monotonic()
        child = self._start()
        self._signals.attach(child)
        status = child.wait()
        self._signals.detach()
        seconds = time.monotonic() - begin
        if status.exit_code not in (_DONE, _BAD_INPUT) and child.end_process_group():
            _print("the processes that the command left running were ended as well")
        run = announced(self._link)
        if run is None:
            return _ChildAttempt(status, seconds, child.last_lines())
        record_exit_reason(run.model_dir, status.reason, since)
        progress = read_progress(run.model_dir, since)
        return _ChildAttempt(
            status, seconds, child.last_lines(), run.model_dir, progress, run.requeue_exit_code, run.stop_reason
        )

    def _is_final(self, attempt: _ChildAttempt) -> bool:
        """Returns whether the command must not be restarted, whatever progress it made."""
        code = attempt.status.exit_code
        if code in (_DONE, _BAD_INPUT, attempt.requeue_exit_code):
            return True
        if attempt.stop_reason is not None:
            where = _position(attempt.progress)
            _print(f"not restarted: {attempt.stop_reason}{where}; the same command continues the run")
            return True
        if (number := self._signals.stop_requested(code)) is None:
            return False
        ended = f"{attempt.status}{_position(attempt.progress)}"
        _print(f"{attempt.status.who} {ended}; not restarted: this process received {number.name}")
        return True

    def _has_new_checkpoint(self, model_dir: Path | None) -> bool:
        """Returns whether the run in `model_dir`, or one announced earlier, has a newer checkpoint than seen so far."""
        if model_dir is not None:
            self._saved.setdefault(model_dir, 0)
        newer = {one: step for one, seen in self._saved.items() if (step := newest_step(one) or 0) > seen}
        self._saved |= newer
        return bool(newer)


def pause(backoff: float, stalls: int) -> float:
    """Returns how many seconds to wait after this many restarts without progress."""
    return min(backoff * 2**stalls, max(_LONGEST_PAUSE, backoff))


def _position(progress: RunProgress) -> str:
    """Returns the step at which the command died, if it is known, and the newest checkpoint."""
    if progress.reached is None and progress.saved is None:
        return ""
    saved = "no checkpoint yet" if progress.saved is None else f"newest checkpoint: step {progress.saved}"
    return f" at step {progress.reached or 0}, {saved}"


def _diagnosis(reason: str, attempt: _ChildAttempt, ends: Sequence[ExitStatus]) -> str:
    who = attempt.status.who.replace("the command", "it")
    lines = [
        f"giving up: {reason}",
        f"  {who} {attempt.status}{_position(attempt.progress)}",
        f"  all attempts: {', '.join(status.reason for status in ends[-10:])}",
    ]
    if (attempt.progress.reached or 0) > (attempt.progress.saved or 0):
        lines += [
            "  it computes steps but dies before it saves them: save more often",
            "  (an experiment: trainer.checkpoint_interval; fit and Training: shorter epochs, by steps_per_epoch)",
        ]
    if attempt.last_lines:
        lines += ["  the last lines it wrote:", *(f"  | {line}" for line in attempt.last_lines)]
    return "\n".join(lines)


def _print(text: str) -> None:
    """Writes past Python's buffers: a buffer that cannot be flushed at exit would change the exit code."""
    with contextlib.suppress(OSError):
        os.write(2, f"everstep: {redaction.text(text)}\n".encode(errors="replace"))
