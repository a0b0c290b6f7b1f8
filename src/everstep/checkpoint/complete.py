"""Which checkpoints a run has, told from the names on disk: for those who only look, such as a supervisor.

checkpoints/
  100/           complete: it gets this name when its manifest and everything else is written
  200.replaced/  complete, too: the former checkpoint of a step whose new one is not complete yet
  300.damaged/   set aside; like all other names, not a checkpoint
"""

import contextlib
import re
from pathlib import Path

from everstep.checkpoint import manifest

CHECKPOINTS = "checkpoints"
"""The folder of a run directory with the checkpoints from which the run resumes."""

_NAME = re.compile(r"(0|[1-9][0-9]*)(\.replaced)?")


def step_of(path: Path) -> int | None:
    """Returns the step of a checkpoint by its name; None if that is not the name of one."""
    found = _NAME.fullmatch(path.name)
    return int(found[1]) if found else None


def complete_checkpoints(folder: Path) -> dict[int, Path]:
    """Returns the complete checkpoints in a folder by their steps, in order; empty if there is no such folder."""
    found: dict[int, Path] = {}
    with contextlib.suppress(OSError):
        for path in sorted(folder.iterdir(), reverse=True):  # `100` after `100.replaced`
            if (step := step_of(path)) is not None and (path / manifest.NAME).is_file():
                found[step] = path
    return dict(sorted(found.items()))


def newest_step(model_dir: Path) -> int | None:
    """Returns the step of the newest complete checkpoint of a run; None if there is none."""
    return max(complete_checkpoints(model_dir / CHECKPOINTS), default=None)
