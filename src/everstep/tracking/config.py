"""Where a run's numbers go."""

import dataclasses

from everstep.config import Config


@dataclasses.dataclass
class TrackingConfig(Config):
    """Trackers beside the console, `history.csv` and TensorBoard."""

    mlflow: bool = False
    """Whether to track on MLflow: one run there for the whole run, over all its attempts."""
    mlflow_uri: str = ""
    """The tracking server or store. Empty: MLFLOW_TRACKING_URI, else `mlflow.db` beside the run directory."""
    mlflow_experiment: str = ""
    """The experiment's name on MLflow. Empty: the name of the experiment here."""
