"""What a run in a directory has kept and how far it was; and the note why an attempt at it died."""

import contextlib
import dataclasses
import datetime
from pathlib import Path

from everstep import storage
from everstep.errors import UsageError
from everstep.run.lock import RunLock, last_beat
from everstep.run.record import read


@dataclasses.dataclass(frozen=True)
class Progress:
    """How far a run is.

    Attributes:
      saved: The step of its newest checkpoint; None if it has none.
      reached: The step it had computed when it died; None if it never said.
    """

    saved: int | None = None
    reached: int | None = None


def progress(model_dir: Path, since: float) -> Progress:
    """Returns how far the run in `model_dir` is, as a process left it that was started at the time `since`."""
    beat = last_beat(model_dir)
    reached = beat[0] if beat is not None and beat[1] >= since else _recorded_step(model_dir)
    return Progress(newest_checkpoint(model_dir), reached)


def newest_checkpoint(model_dir: Path) -> int | None:
    """Returns the step of the newest checkpoint in `model_dir`, None if there is none."""
    with contextlib.suppress(OSError):
        return max((int(e.name) for e in (model_dir / "checkpoints").iterdir() if e.name.isdecimal()), default=None)
    return None


def note_death(model_dir: Path, reason: str, since: float) -> None:
    """Writes why it died into the record of an attempt begun after `since` that could not do so itself.

    Leaves everything as it is where another process trains by now.
    """
    if not (model_dir / "run.json").is_file():
        return
    with contextlib.suppress(UsageError, OSError, KeyError, TypeError, ValueError), RunLock(model_dir):
        record = read(model_dir)
        attempt = record["attempts"][-1] if record["attempts"] else {"ended": "never begun"}
        if attempt["ended"] is None and attempt["reason"] is None and _seconds(attempt["started"]) >= since - 1:
            attempt["reason"] = reason
            storage.write_json(model_dir / "run.json", record)


def _recorded_step(model_dir: Path) -> int | None:
    with contextlib.suppress(UsageError, TypeError, ValueError):
        return int(read(model_dir)["step"])
    return None


def _seconds(time: str) -> float:
    return datetime.datetime.fromisoformat(time).timestamp()
