"""Which run on Weights & Biases, and whether it is sent at once."""

import dataclasses
import importlib.util
import os
import re
from collections.abc import Iterable
from typing import Literal

from everstep.errors import missing_extra
from everstep.tracking.spool import Record

Mode = Literal["online", "offline"]

_NOT_IN_PROJECTS = re.compile(r"[/\\#?%:]+")
_LONGEST_PROJECT = 128
_OFFLINE = ("offline", "dryrun")  # both are W&B's own words


@dataclasses.dataclass(frozen=True)
class WandbTarget:
    """Where a run is recorded.

    Attributes:
      run_id: The id of the everstep run, and of the one on W&B.
      project: The project on W&B.
      entity: The user or team; empty for the account's own.
      mode: Whether to send at once, or to keep files.
      name: What the run is called there.
    """

    run_id: str
    project: str
    entity: str
    mode: Mode
    name: str

    @property
    def server(self) -> str:
        """What the records are delivered to, in a word."""
        if self.mode == "offline":
            return "offline"
        return "/".join(filter(None, [_base_url(), self.entity, self.project]))

    def record(self) -> Record:
        """Returns it as a record of the spool."""
        return {"type": "target", **dataclasses.asdict(self)}

    @classmethod
    def recorded(cls, records: Iterable[Record]) -> "WandbTarget | None":
        """Returns the last one in a spool, to be sent now."""
        last = None
        for record in records:
            last = record if record["type"] == "target" else last
        if last is None:
            return None
        return cls(last["run_id"], last["project"], last["entity"], "online", last["name"])


def make_target(run_id: str, experiment: str, name: str, project: str, entity: str, mode: str) -> WandbTarget:
    """Returns what is meant by the configuration's values; where they are empty, W&B's own variables are asked.

    Raises:
      UsageError: W&B's package is missing.
    """
    require_package()
    asked = (mode or os.environ.get("WANDB_MODE", "")).lower()
    return WandbTarget(
        run_id,
        project or os.environ.get("WANDB_PROJECT") or _NOT_IN_PROJECTS.sub("-", experiment)[:_LONGEST_PROJECT],
        entity or os.environ.get("WANDB_ENTITY", ""),
        "offline" if asked in _OFFLINE else "online",
        name,
    )


def is_disabled() -> bool:
    """Returns whether the environment switches W&B off, as its own variable does for every program."""
    return os.environ.get("WANDB_MODE", "").lower() == "disabled"


def require_package() -> None:
    """Refuses to go on without W&B's package.

    Raises:
      UsageError: It is not installed.
    """
    if importlib.util.find_spec("wandb") is None:
        raise missing_extra("wandb", "wandb", "tracking with Weights & Biases")


def _base_url() -> str:
    return os.environ.get("WANDB_BASE_URL", "wandb.ai").removeprefix("https://").rstrip("/")
