"""A catalog of data: what a project reads and writes, by name.

# config/catalog.yaml
mnist:
  raw: data/raw/mnist.npz                 # the short form: the type follows from the suffix
  scores: {type: csv, filepath: data/report/scores.csv, versioned: true}

catalog = Catalog.from_files(["config/catalog.yaml"], root=".")
arrays = catalog.load("mnist.raw")
catalog.save("mnist.scores", table)

catalog.py       load, save, check, fingerprint; "the catalog has no such name", a missing file
entries.py       catalog files as entries: the short form, which keys an entry may have, later files over earlier
                 ones, misspelt keys
formats.py       the types (npz, csv, parquet, images, tfrecord, json …): suffixes, arguments, defaults; which one an
                 entry has; a new kind of file is added here
data_type.py     `DataType`: what reads and writes one type of data, also of a project's own; unknown arguments
pickles.py       pickles, where `allow-pickle = true` in `pyproject.toml`
places.py        where data is: a path relative to the project, or a store; versions: which is the newest, how the next
                 is named
fingerprints.py  digests of content; when a file is read again
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
