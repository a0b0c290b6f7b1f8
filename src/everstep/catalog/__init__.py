"""A catalog of data: what a project reads and writes, by name.

# config/catalog.yaml
mnist:
  raw: data/raw/mnist.npz                 # the short form: the type follows from the suffix
  scores: {type: csv, filepath: data/report/scores.csv, versioned: true}

catalog = Catalog.from_files(["config/catalog.yaml"], root=".")
arrays = catalog.load("mnist.raw")
catalog.save("mnist.scores", table)

catalog.py       load, save, check, fingerprint
sources.py       files, layered and interpolated, as one tree
entries.py       what an entry may say
kinds.py         which type reads and writes it
dataset.py       what every type is
arrays.py … texts.py   the types
places.py        where data lies: a folder of this machine, or a store
versions.py      names of versions, and which is newest
fingerprints.py  digests of content
"""

from everstep.catalog.catalog import Catalog
from everstep.catalog.dataset import Dataset
from everstep.catalog.entries import Entry

__all__ = ["Catalog", "Dataset", "Entry"]
