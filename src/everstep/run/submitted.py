"""What a run is told by the submission that started it, if one did: which copies to use in place of what is edited.

A job may wait for hours. The environment variable EVERSTEP_SUBMISSION names the folder with the config file, the
classes and the code version as they were when it was submitted.
"""

import contextlib
import dataclasses
import os
from pathlib import Path
from typing import Any

from everstep import storage
from everstep.errors import UsageError

VARIABLE = "EVERSTEP_SUBMISSION"
"""The environment variable."""

FOLDER = "submissions"
"""Where those folders are, in a run's."""

RECORD, STARTED, ENDED = "submission.json", "started.json", "ended.json"
"""Their files: what was submitted; when its job began; how it ended."""


@dataclasses.dataclass(frozen=True)
class Submitted:
    """The copies that a run was submitted with.

    Attributes:
      config: The config file.
      sources: The folder of the project's classes.
    """

    config: Path
    sources: Path


def submitted(run_dir: storage.PathLike) -> Submitted | None:
    """Returns the copies that this process is to use for the run in `run_dir`; None if it was not submitted.

    Raises:
      UsageError: They are gone: what would be trained now is not what was submitted.
    """
    folder = _folder()
    if folder is None or not folder.resolve().is_relative_to(Path(run_dir).resolve()):
        return None
    record = storage.read_json(folder / RECORD)
    if not record.get("config"):
        return None
    copies = Submitted(folder / record["config"], folder / "sources")
    if not (copies.config.is_file() and copies.sources.is_dir()):
        raise UsageError(f"the copies in {str(folder)!r} are not complete any more: submit the run again")
    return copies


def submitted_code(root: storage.PathLike) -> dict[str, Any] | None:
    """Returns the version of the code at `root` as it was submitted; None where this process was not."""
    folder = _folder()
    with contextlib.suppress(UsageError, KeyError, TypeError, OSError):
        if folder is not None:
            record = storage.read_json(folder / RECORD)
            if Path(record["root"]).resolve() == Path(root).resolve():
                return dict(record["code"])
    return None


def _folder() -> Path | None:
    named = os.environ.get(VARIABLE)
    return Path(named) if named else None
