"""The configuration of tracking: which sinks a run writes to, and what they record."""

import dataclasses
import math
import re
from collections.abc import Iterator
from typing import Annotated, Any, Literal

from annotated_types import Ge

from everstep.config import Config
from everstep.errors import Problem

SERVERS = ("mlflow", "wandb")
"""The keys that turn on a tracker on a server; a run that is repeated to be compared turns them off."""

_NOT_IN_PROJECTS = re.compile(r"[/\\#?%:]")
_LEAST_SECONDS = 0.1


@dataclasses.dataclass
class TrackingConfig(Config):
    """Trackers beside the console, `history.csv` and TensorBoard, and what they record beside metrics."""

    mlflow: bool = False
    """Whether to track on MLflow: one run there for the whole run, over all its attempts."""
    mlflow_uri: str = ""
    """The tracking server or store. Empty: MLFLOW_TRACKING_URI, else `mlflow.db` in the folder of `runs`."""
    mlflow_experiment: str = ""
    """The experiment's name on MLflow. Empty: the name of the experiment here."""
    wandb: bool = False
    """Whether to track on Weights & Biases: one run there for the whole run, over all its attempts."""
    wandb_project: str = ""
    """The project on W&B. Empty: WANDB_PROJECT, else the name of the experiment here."""
    wandb_entity: str = ""
    """The user or team on W&B. Empty: WANDB_ENTITY, else the account's own."""
    wandb_mode: Literal["", "online", "offline"] = ""
    """Whether to send at once, or to keep files for later. Empty: WANDB_MODE, else online; offline without a key."""
    jsonl: bool = False
    """Whether to write `metrics.jsonl`: a JSON object on a line of its own for each call of `log`."""
    others: dict[str, dict[str, Any]] = dataclasses.field(default_factory=dict)
    """Trackers of installed packages, by the name of their entry point in `everstep.trackers`, with their settings."""
    samples: Annotated[int, Ge(0)] = 0
    """How many samples of the validation data to log at each evaluation, as the task's `show` returns them. 0: none."""
    norms: bool = False
    """Whether to log the norms of the gradients and of the weights."""
    histogram_interval: Annotated[int, Ge(0)] = 0
    """Log histograms of the weights at loops' ends that are multiples of this. 0: never."""
    system_seconds: float = 0.0
    """Seconds between two readings of the machine (CPU, memory, disk, GPUs), for the trackers. 0: none."""

    def without_servers(self) -> "TrackingConfig":
        """Returns the same with only the files that a run writes in its directory, for one that repeats another."""
        files = self.replace(**dict.fromkeys(SERVERS, False))
        files.others = {}
        return files

    def _problems(self) -> Iterator[Problem]:
        for name in ("wandb_project", "wandb_entity"):
            value = getattr(self, name)
            if _NOT_IN_PROJECTS.search(value):
                yield Problem(name, "must not contain / \\ # ? % :", received=value)
        if self.system_seconds and not _LEAST_SECONDS <= self.system_seconds < math.inf:
            text = f"must be 0 for none, or at least {_LEAST_SECONDS}"
            yield Problem("system_seconds", text, received=self.system_seconds)
