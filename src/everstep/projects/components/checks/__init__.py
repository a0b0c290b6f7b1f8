"""`everstep check`: tries every component before a run is trained, and whether they fit together.

runner.py        runs checks in order; one that fails skips those that depend on it; ok, FAIL, warn, skip
data_checks.py   samples and batches: numbers, order, ids, a sample in two splits, weights, augmentation
model_checks.py  model, labels, callbacks, training step, whether one batch can be learned, export, evaluation
                 functions
all_checks.py    the list of checks, with what each depends on
"""

from typing import TYPE_CHECKING

from everstep.doors import lazy_names

if TYPE_CHECKING:
    from everstep.projects.components.checks.all_checks import check_all
    from everstep.projects.components.checks.runner import Subject

__getattr__, __dir__ = lazy_names(__name__, __file__)
