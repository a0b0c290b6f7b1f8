"""A catalog of data: what a project reads and writes, by name.

The code is in `everstep.frontends.catalog`.
"""

from everstep.frontends.catalog import Catalog as Catalog
from everstep.frontends.catalog import DataType as DataType
from everstep.frontends.catalog import Entry as Entry

__all__ = ["Catalog", "DataType", "Entry"]
