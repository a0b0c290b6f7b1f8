"""`Training`: the base of a team's training components. Construct it, call `run_train`; a preempted job resumes."""

from everstep.data.tfrecord import get_labels, get_tfrecord_dataset, get_train_ds, get_valid_ds
from everstep.frontends.training.pipeline_job import JobPaths, job_paths, run_component
from everstep.frontends.training.training import Training

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
