"""`Training`: the base of a team's training components.

The code is in `everstep.projects.training`.
"""

from typing import TYPE_CHECKING

from everstep.doors import lazy_names

if TYPE_CHECKING:
    from everstep.data import get_labels, get_tfrecord_dataset, get_train_ds, get_valid_ds
    from everstep.projects.training import JobPaths, Training, job_paths, run_component


__getattr__, __dir__ = lazy_names(__name__, __file__)
