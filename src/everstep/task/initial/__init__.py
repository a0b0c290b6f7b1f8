"""Initial weights from `task.init_checkpoint`, in any supported format.

Files are not trusted: nothing in a file is run, nothing outside it is read, and no array is read before its shape is
known to match a weight.

loading.py      weights from a path into a model
find.py         what a path is
keras_file.py   `.keras` and `.weights.h5`
checkpoints.py  checkpoints of runs and of TensorFlow, SavedModels
matching.py     arrays and weights in pairs, by name and shape
"""

from typing import TYPE_CHECKING

from everstep.doors import lazy_names

if TYPE_CHECKING:
    from everstep.task.initial.keras_file import archive_member
    from everstep.task.initial.loading import load
    from everstep.task.initial.matching import Report

__getattr__, __dir__ = lazy_names(__name__, __file__)
