"""Starting a command again when it dies, as long as that brings it further."""

import contextlib
import dataclasses
import math
import os
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from everstep import redaction
from everstep.errors import UsageError
from everstep.launch.child import Child
from everstep.launch.exit_status import Death
from everstep.launch.forwarding import Forwarding
from everstep.launch.progress import Progress, newest_checkpoint, note_death, progress
from everstep.run.launcher import SUPERVISOR, announced

_DONE, _BAD_INPUT = 0, 2
_MOST_STALLS = 3
_LONGEST_PAUSE = 60.0
_LONG_LIFE = 300.0


def supervise(command: Sequence[str], max_restarts: int, backoff: float = 1.0) -> int:
    """Runs a command and starts it again when it dies; returns the exit code to end with.

    It is not started again when it is done (0), was given bad input (2), asks for another machine (its requeue exit
    code), or ends after a signal that this process was sent and has passed on, unless it has shown that the signal was
    no request to end (see `Forwarding.asked_to_end`). Otherwise it is, after a pause that doubles with every restart
    in vain, up to a minute. A restart was not in vain if there is a new checkpoint since, in any of the directories
    that the command trains in one after the other; of a command that is no run of ours, if it lived for five minutes.
    Three in vain in a row are a crash loop, which more restarts would not end: it stops there and says what happened.

    Args:
      command: Program and arguments.
      max_restarts: How often it may be started again.
      backoff: The first pause, in seconds.

    Returns:
      The command's last exit code; 128 + the number of the signal that ended it.

    Raises:
      UsageError: The command cannot be started, or a number makes no sense.
    """
    _check(command, max_restarts, backoff)
    with tempfile.TemporaryDirectory(prefix="everstep-") as folder, Forwarding() as forwarding:
        return _Supervisor(command, max_restarts, backoff, Path(folder) / "run.json", forwarding).run()


@dataclasses.dataclass(frozen=True)
class _Attempt:
    death: Death
    seconds: float
    last_lines: list[str]
    model_dir: Path | None
    progress: Progress
    requeue_exit_code: int | None


class _Supervisor:
    def __init__(
        self, command: Sequence[str], max_restarts: int, backoff: float, link: Path, forwarding: Forwarding
    ) -> None:
        self._command = command
        self._max_restarts = max_restarts
        self._backoff = backoff
        self._link = link
        self._forwarding = forwarding
        self._deaths: list[Death] = []
        self._stalls = 0
        self._saved: dict[Path, int] = {}

    def run(self) -> int:
        while True:
            attempt = self._attempt()
            if self._is_final(attempt):
                return attempt.death.exit_code
            self._count(attempt)
            if (why := self._enough()) is not None:
                _say(_diagnosis(why, attempt, self._deaths))
                return attempt.death.exit_code
            self._pause(attempt)
            if (number := self._forwarding.asked_to_end()) is not None:
                _say(f"not restarted: this process was sent {number.name}")
                return 128 + number

    def _attempt(self) -> _Attempt:
        since, begin = time.time(), time.monotonic()
        child = Child(self._command, os.environ | {SUPERVISOR: str(self._link)})
        self._forwarding.attach(child)
        death = child.wait()
        self._forwarding.detach()
        seconds = time.monotonic() - begin
        if death.exit_code not in (_DONE, _BAD_INPUT) and child.end_the_rest():
            _say("what the command had left running was ended as well")
        told = announced(self._link)
        if told is None:
            return _Attempt(death, seconds, child.last_lines(), None, Progress(), None)
        note_death(told.model_dir, death.reason, since)
        kept = progress(told.model_dir, since)
        return _Attempt(death, seconds, child.last_lines(), told.model_dir, kept, told.requeue_exit_code)

    def _is_final(self, attempt: _Attempt) -> bool:
        code = attempt.death.exit_code
        if code in (_DONE, _BAD_INPUT, attempt.requeue_exit_code):
            return True
        if (number := self._forwarding.asked_to_end(code)) is None:
            return False
        what = f"{attempt.death}{_where(attempt.progress)}"
        _say(f"the command {what}; not restarted: this process was sent {number.name}")
        return True

    def _count(self, attempt: _Attempt) -> None:
        """Counts a death, and whether the restart before it was in vain."""
        lived_long = attempt.model_dir is None and attempt.seconds >= _LONG_LIFE
        in_vain = not self._has_saved(attempt.model_dir) and bool(self._deaths) and not lived_long
        self._stalls = self._stalls + 1 if in_vain else 0
        self._deaths.append(attempt.death)

    def _has_saved(self, model_dir: Path | None) -> bool:
        """Tells whether the run in `model_dir`, or one that died before it, has a newer checkpoint than ever seen."""
        if model_dir is not None:
            self._saved.setdefault(model_dir, 0)
        newer = {one: step for one, seen in self._saved.items() if (step := newest_checkpoint(one) or 0) > seen}
        self._saved |= newer
        return bool(newer)

    def _enough(self) -> str | None:
        """Returns why it is not started again, None if it is."""
        if self._stalls >= _MOST_STALLS:
            return f"{_MOST_STALLS} restarts in a row brought it no further"
        if len(self._deaths) > self._max_restarts:
            return f"it may be restarted {self._max_restarts} times, and was"
        return None

    def _pause(self, attempt: _Attempt) -> None:
        seconds = pause(self._backoff, self._stalls)
        _say(
            f"the command {attempt.death}{_where(attempt.progress)}; "
            f"restart {len(self._deaths)} of {self._max_restarts} in {seconds:g} s"
        )
        self._forwarding.sleep(seconds)


def pause(backoff: float, stalls: int) -> float:
    """Returns how many seconds to wait after so many restarts in vain."""
    return min(backoff * 2**stalls, max(_LONGEST_PAUSE, backoff))


def _check(command: Sequence[str], max_restarts: int, backoff: float) -> None:
    if not command:
        raise UsageError("there is no command to run: put it after --, as in: everstep launch -- python train.py")
    if max_restarts < 0:
        raise UsageError(f"--max-restarts: received {max_restarts}, must be 0 or more")
    if not (math.isfinite(backoff) and backoff >= 0):
        raise UsageError(f"--backoff: received {backoff}, must be 0 or more seconds")


def _where(kept: Progress) -> str:
    """Returns at which step it died, as far as it is known."""
    if kept.reached is None and kept.saved is None:
        return ""
    saved = "no checkpoint yet" if kept.saved is None else f"newest checkpoint: step {kept.saved}"
    return f" at step {kept.reached or 0}, {saved}"


def _diagnosis(why: str, attempt: _Attempt, deaths: Sequence[Death]) -> str:
    lines = [
        f"giving up: {why}",
        f"  it {attempt.death}{_where(attempt.progress)}",
        f"  all its ends: {', '.join(death.reason for death in deaths[-10:])}",
    ]
    if (attempt.progress.reached or 0) > (attempt.progress.saved or 0):
        lines.append("  it computes steps but dies before it saves them: save more often (trainer.checkpoint_interval)")
    if attempt.last_lines:
        lines += ["  the last lines it wrote:", *(f"  | {line}" for line in attempt.last_lines)]
    return "\n".join(lines)


def _say(text: str) -> None:
    """Writes past Python's buffers: what is left in those when nobody reads any more would spoil the exit code."""
    with contextlib.suppress(OSError):
        os.write(2, f"everstep: {redaction.text(text)}\n".encode(errors="replace"))
