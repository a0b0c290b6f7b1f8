"""Projects: code, configuration and data in a folder of their own, in the ways that teams bring from other systems.

A companion: it uses the core as any package could, and the core does without it. Users import the names from
`everstep.training`, `everstep.components`, `everstep.flow` and `everstep.catalog`. `everstep new` creates a project
from one of the folders in `templates`.

training/            `everstep.Training`: jobs of a pipeline
components/          `Orchestrator`: data loader, augmentor, preprocessor, model builder, evaluator; `everstep check`
flow/                `FlowTask`, its YAML files, `everstep flow`
catalog/             data by name, for flows and programs; kinds of files, versions
commands/            `everstep new`, `check`, `run`, `flow` and `catalog`
layouts.py           what each of them calls its files and folders
repetitions.py       `everstep reproduce` of their runs: what of a project is copied, linked or left out
project_tracking.py  MLflow for components and flows: where (MLFLOW_TRACKING_URI, else `mlflow.db`), which files, when
                     MLflow is not installed
keras_names.py       optimizers, losses and metrics by name: "unknown to Keras", before a model is compiled
"""

from typing import TYPE_CHECKING

from everstep.doors import lazy_names

if TYPE_CHECKING:
    from everstep.projects.keras_names import (
        plain_names,
        require_losses,
        require_metrics,
        require_optimizer,
    )
    from everstep.projects.layouts import (
        COMPONENTS,
        FLOW,
        TRAINING,
    )
    from everstep.projects.project_tracking import (
        MlflowTracking,
        Tracking,
        tracking_uri,
        version_text,
    )

__getattr__, __dir__ = lazy_names(__name__, __file__)
