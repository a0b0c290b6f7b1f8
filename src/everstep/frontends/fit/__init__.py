"""`everstep.fit`: the arguments of `model.fit`, on the loop.

fitting.py        `fit`: the arguments, and the run that they describe
samples.py        x, y and sample_weight as one source of data
preprocessing.py  the preprocessor of a KerasHub task
"""

from typing import TYPE_CHECKING

from everstep.doors import lazy_names

if TYPE_CHECKING:
    from everstep.frontends.fit.fitting import fit

__getattr__, __dir__ = lazy_names(__name__, __file__)
