"""Where a run's numbers go."""

import dataclasses
import math

from everstep.config import Config, ConfigError, Problem

_LEAST_SECONDS = 0.1


@dataclasses.dataclass
class TrackingConfig(Config):
    """Trackers beside the console, `history.csv` and TensorBoard."""

    mlflow: bool = False
    """Whether to track on MLflow: one run there for the whole run, over all its attempts."""
    mlflow_uri: str = ""
    """The tracking server or store. Empty: MLFLOW_TRACKING_URI, else `mlflow.db` beside the run directory."""
    mlflow_experiment: str = ""
    """The experiment's name on MLflow. Empty: the name of the experiment here."""
    system_seconds: float = 0.0
    """Seconds between two looks at the machine (CPU, memory, disk, GPUs), for the trackers. 0: none."""

    def validate(self) -> None:
        """Checks the numbers.

        Raises:
          UsageError: One of them cannot be used; names the key.
        """
        super().validate()
        if self.system_seconds and not _LEAST_SECONDS <= self.system_seconds < math.inf:
            text = f"received {self.system_seconds}, must be 0 for none, or at least {_LEAST_SECONDS}"
            raise ConfigError([Problem("system_seconds", text)])
