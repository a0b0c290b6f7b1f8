"""`Training`: the base of a team's training components.

The code is in `everstep.frontends.training`.
"""

from typing import TYPE_CHECKING

from everstep.lazy_names import lazy_names

if TYPE_CHECKING:
    from everstep.data.tfrecord import get_labels as get_labels
    from everstep.data.tfrecord import get_tfrecord_dataset as get_tfrecord_dataset
    from everstep.data.tfrecord import get_train_ds as get_train_ds
    from everstep.data.tfrecord import get_valid_ds as get_valid_ds
    from everstep.frontends.training.pipeline_job import JobPaths as JobPaths
    from everstep.frontends.training.pipeline_job import job_paths as job_paths
    from everstep.frontends.training.pipeline_job import run_component as run_component
    from everstep.frontends.training.training import Training as Training

_WHERE = {
    "JobPaths": "everstep.frontends.training.pipeline_job",
    "Training": "everstep.frontends.training.training",
    "get_labels": "everstep.data.tfrecord",
    "get_tfrecord_dataset": "everstep.data.tfrecord",
    "get_train_ds": "everstep.data.tfrecord",
    "get_valid_ds": "everstep.data.tfrecord",
    "job_paths": "everstep.frontends.training.pipeline_job",
    "run_component": "everstep.frontends.training.pipeline_job",
}

__all__ = sorted(_WHERE)
__getattr__, __dir__ = lazy_names(__name__, _WHERE)
