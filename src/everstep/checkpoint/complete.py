"""Which checkpoints a run has, and which of them are complete, told from the names on disk.

Whoever resumes asks here, and whoever only looks, such as a supervisor.

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

REPLACED = ".replaced"
"""The end of the name of a former checkpoint of a step."""

_NAME = re.compile(rf"(0|[1-9][0-9]*)({re.escape(REPLACED)})?")


def step_of(path: Path) -> int | None:
    """Returns the step of a checkpoint by its name; None if that is not the name of one."""
    found = _NAME.fullmatch(path.name)
    return int(found[1]) if found else None


def steps_in(folder: Path) -> list[int]:
    """Returns the steps that have a directory in a folder, in order, complete or not."""
    return sorted({step for path in folder.iterdir() if (step := step_of(path)) is not None})


def is_complete(directory: Path) -> bool:
    """Returns whether a directory with the name of a checkpoint is one: the manifest is written last."""
    return (directory / manifest.NAME).is_file()


def directory_of(folder: Path, step: int) -> Path:
    """Returns the directory of a step: the complete one, else the one that exists, of `100` and `100.replaced`."""
    paths = (folder / str(step), folder / f"{step}{REPLACED}")
    chosen = [path for path in paths if is_complete(path)] or [path for path in paths if path.exists()]
    return chosen[0] if chosen else paths[0]


def complete_checkpoints(folder: Path) -> dict[int, Path]:
    """Returns the complete checkpoints in a folder by their steps, in order; empty if it cannot be read."""
    with contextlib.suppress(OSError):
        paths = {step: directory_of(folder, step) for step in steps_in(folder)}
        return {step: path for step, path in paths.items() if is_complete(path)}
    return {}


def newest_step(model_dir: Path) -> int | None:
    """Returns the step of the newest complete checkpoint of a run; None if there is none."""
    return max(complete_checkpoints(model_dir / CHECKPOINTS), default=None)
