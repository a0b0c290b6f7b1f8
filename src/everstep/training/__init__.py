"""`Training`: the base of a team's training components. Construct it, call `run_train`; a preempted job goes on."""

from everstep.data.record_dataset import get_tfrecord_dataset, get_train_ds, get_valid_ds
from everstep.data.record_files import get_labels
from everstep.training.component import run_component
from everstep.training.paths import JobPaths, job_paths
from everstep.training.training import Training

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
