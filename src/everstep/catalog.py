"""A catalog of data: what a project reads and writes, by name.

The code is in `everstep.projects.catalog`.
"""

from typing import TYPE_CHECKING

from everstep.doors import lazy_names

if TYPE_CHECKING:
    from everstep.projects.catalog import Catalog, DataType, Entry


__getattr__, __dir__ = lazy_names(__name__, __file__)
