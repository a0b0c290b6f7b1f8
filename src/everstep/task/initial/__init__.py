"""Initial weights from `task.init_checkpoint`, in any supported format.

Files are not trusted: nothing in a file is run, nothing outside it is read, and no array is read before its shape is
known to match a weight.

loading.py      `init_checkpoint`: weights from a path into a model: which must fit, what is reported
find.py         what a path is: Keras file, TensorFlow checkpoint, SavedModel, run; several or none in a folder
keras_file.py   `.keras` and `.weights.h5`: damaged or harmful archives are refused
checkpoints.py  checkpoints of runs (the newest good one) and of TensorFlow, SavedModels
matching.py     which array belongs to which weight: by name and shape, numbers of layers; missing, mismatched and
                unexpected ones
"""

from typing import TYPE_CHECKING

from everstep.doors import lazy_names

if TYPE_CHECKING:
    from everstep.task.initial.keras_file import archive_member
    from everstep.task.initial.loading import load
    from everstep.task.initial.matching import Report

__getattr__, __dir__ = lazy_names(__name__, __file__)
