"""`everstep.fit`: the arguments of `model.fit`, on the loop.

fitting.py        `fit`: its arguments and defaults, their names in errors, seeds
arguments.py      checks every argument but the data: unknown ones, numbers, `class_weight`, formats, directories that
                  are no place for a run; batch sizes as Keras chooses them
tracking.py       `tracking`: names of trackers, or their settings
labelling.py      `name`, `tags` and `notes`; the default name, which is that of the model
final_report.py   `report`: which runs are evaluated sample by sample at their end (those where it takes at most 10 s),
                  and the page
best_epoch.py     the best value in the last lines: of which metric, in which epoch
samples.py        x, y and sample_weight as one source of data; `validation_split`: the last rows; pandas tables;
                  missing labels
data_folders.py   refuses a run directory in a folder of training data
streams.py        the batches of x and `validation_data`: what differs from an experiment, such as the last short
                  batch, which is trained; a source's own configuration; `batch_size` where data has batches
preprocessing.py  a KerasHub task's preprocessor, applied to batches
"""

from typing import TYPE_CHECKING

from everstep.doors import lazy_names

if TYPE_CHECKING:
    from everstep.frontends.fit.fitting import fit

__getattr__, __dir__ = lazy_names(__name__, __file__)
