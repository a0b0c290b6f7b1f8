"""`Training`: the base of a team's training components.

The code is in `everstep.frontends.training`.
"""

from everstep.frontends.training import JobPaths as JobPaths
from everstep.frontends.training import Training as Training
from everstep.frontends.training import get_labels as get_labels
from everstep.frontends.training import get_tfrecord_dataset as get_tfrecord_dataset
from everstep.frontends.training import get_train_ds as get_train_ds
from everstep.frontends.training import get_valid_ds as get_valid_ds
from everstep.frontends.training import job_paths as job_paths
from everstep.frontends.training import run_component as run_component

__all__ = [
    "JobPaths",
    "Training",
    "get_labels",
    "get_tfrecord_dataset",
    "get_train_ds",
    "get_valid_ds",
    "job_paths",
    "run_component",
]
