"""What a run is called on MLflow: one MLflow run for training, export and evaluation, over all attempts."""

import functools
from pathlib import Path

from everstep import redaction
from everstep.frontends.components.config import DESCRIPTIONS, ConfigStruct
from everstep.frontends.components.run_folder import RunFolder
from everstep.frontends.mlflow import MlflowTracking, Tracking, tracking_uri, version_text
from everstep.run.environment import code_version
from everstep.tracking.mlflow import MlflowNames


def create_tracking(folder: RunFolder, config: ConfigStruct, root: Path) -> Tracking:
    """Returns the tracking of a run; without MLflow, warns and returns one that is switched off.

    Args:
      folder: The run's folder.
      config: The configuration.
      root: The project, whose code version is recorded.

    Raises:
      UsageError: `MLFLOW_TRACKING_URI` is no server or database.
    """
    uri = tracking_uri(folder.path.parent.parent)
    if uri is None:
        return Tracking()
    names = functools.cache(functools.partial(mlflow_names, folder.name, config, root))
    return MlflowTracking(folder.path, uri, folder.run_id, names)


def mlflow_names(run_name: str, config: ConfigStruct, root: Path) -> MlflowNames:
    """Returns the names: experiment = `project_name`, a parameter `config_<dotted.key>` for every value.

    Secrets are left out, and so are the sections that only describe the model.
    """
    version = version_text(code_version(root))
    described = {name: value for name, value in config.as_dict().items() if name not in DESCRIPTIONS}
    values = {f"config_{key}": value for key, value in ConfigStruct(redaction.tree(described)).leaves()}
    return MlflowNames(
        experiment=str(config.project_name),
        run=run_name,
        params={**values, "project name": config.project_name, "run name": run_name, "code version": version},
        tags={"session_type": "training", "code version": version},
        results={"model.evaluate": "{split}__model.evaluate_{name}", "eval_funcs": "{split}_{name}"},
    )
