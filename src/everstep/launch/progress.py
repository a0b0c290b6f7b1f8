"""How far the run in a directory is, as another process sees it, and why its last attempt died."""

import contextlib
import dataclasses
import datetime
from pathlib import Path

from everstep import storage
from everstep.checkpoint import newest_step
from everstep.errors import UsageError
from everstep.run import RunLock, last_beat, read


@dataclasses.dataclass(frozen=True)
class RunProgress:
    """How far a run is.

    Attributes:
      saved: The step of its newest checkpoint; None if it has none.
      reached: The step it had computed when it died; None if that is unknown.
    """

    saved: int | None = None
    reached: int | None = None


def read_progress(model_dir: Path, since: float) -> RunProgress:
    """Returns how far the run in `model_dir` is, after a process that was started at the time `since`."""
    saved, beat = newest_step(model_dir), last_beat(model_dir)
    if beat is not None and beat[1] >= since:
        return RunProgress(saved, beat[0])
    with contextlib.suppress(UsageError, TypeError, ValueError):
        return RunProgress(saved, int(read(model_dir)["step"]))
    return RunProgress(saved)


def record_exit_reason(model_dir: Path, reason: str, since: float) -> None:
    """Writes why an attempt died into its record, if it began after `since` and could not do so itself.

    Changes nothing if another process trains there by now.
    """
    if not (model_dir / "run.json").is_file():
        return
    with contextlib.suppress(UsageError, OSError, KeyError, TypeError, ValueError), RunLock(model_dir):
        record = read(model_dir)
        attempt = record["attempts"][-1] if record["attempts"] else {"ended": "never begun"}
        if attempt["ended"] is None and attempt["reason"] is None:
            started = datetime.datetime.fromisoformat(attempt["started"]).timestamp()
            if started >= since - 1:
                attempt["reason"] = reason
                storage.write_json(model_dir / "run.json", record)
