"""A catalog of data: what a project reads and writes, by name.

The code is in `everstep.frontends.catalog`.
"""

from typing import TYPE_CHECKING

from everstep.lazy_names import lazy_names

if TYPE_CHECKING:
    from everstep.frontends.catalog.catalog import Catalog as Catalog
    from everstep.frontends.catalog.data_type import DataType as DataType
    from everstep.frontends.catalog.entries import Entry as Entry

_WHERE = {
    "Catalog": "everstep.frontends.catalog.catalog",
    "DataType": "everstep.frontends.catalog.data_type",
    "Entry": "everstep.frontends.catalog.entries",
}

__all__ = sorted(_WHERE)
__getattr__, __dir__ = lazy_names(__name__, _WHERE)
