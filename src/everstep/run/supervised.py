"""What a run tells the supervisor that started it, if one did: where it keeps its state.

The environment variable EVERSTEP_SUPERVISOR names a file; the run writes its directory there, and the supervisor,
which is another process, reads it when the run has died.
"""

import contextlib
import dataclasses
import os
from pathlib import Path

from everstep import storage
from everstep.errors import UsageError

VARIABLE = "EVERSTEP_SUPERVISOR"
"""The environment variable."""


@dataclasses.dataclass(frozen=True)
class Announcement:
    """What a run has told.

    Attributes:
      model_dir: The run directory.
      requeue_exit_code: The exit code that asks for a start on another machine, None if there is none.
    """

    model_dir: Path
    requeue_exit_code: int | None = None


def announce(model_dir: storage.PathLike, requeue_exit_code: int | None = None) -> None:
    """Tells the supervisor; does nothing without one. Call it early: who dies before it says nothing."""
    path = os.environ.get(VARIABLE)
    if path:
        told = {"model_dir": os.path.abspath(model_dir), "requeue_exit_code": requeue_exit_code}
        with contextlib.suppress(OSError):  # a supervisor that has gone is no reason to stop
            storage.write_json(path, told)


def announced(path: storage.PathLike) -> Announcement | None:
    """Returns what was told last in the file at `path`; None if nothing was."""
    with contextlib.suppress(UsageError, KeyError, TypeError):
        told = storage.read_json(path)
        return Announcement(Path(told["model_dir"]), told.get("requeue_exit_code"))
    return None
