"""A catalog of data: what a project reads and writes, by name.

# config/catalog.yaml
mnist:
  raw: data/raw/mnist.npz                 # the short form: the type follows from the suffix
  scores: {type: csv, filepath: data/report/scores.csv, versioned: true}

catalog = Catalog.from_files(["config/catalog.yaml"], root=".")
arrays = catalog.load("mnist.raw")
catalog.save("mnist.scores", table)

catalog.py       load, save, check, fingerprint
entries.py       files as entries by name
formats.py       the types that read and write data, and which one an entry has
data_type.py     what reads and writes one type of data
pickles.py       pickles, where a project allows them
places.py        where data is: a folder of this machine or a store; versions
fingerprints.py  digests of content
"""

from typing import TYPE_CHECKING

from everstep.doors import lazy_names

if TYPE_CHECKING:
    from everstep.projects.catalog import entries
    from everstep.projects.catalog.catalog import Catalog
    from everstep.projects.catalog.data_type import DataType
    from everstep.projects.catalog.entries import Entry
    from everstep.projects.catalog.formats import SHIPPED

__getattr__, __dir__ = lazy_names(__name__, __file__)
