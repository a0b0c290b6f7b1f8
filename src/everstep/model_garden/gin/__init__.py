"""Gin bindings, for fields of configs and for gin's configurables; what code calls.

reading.py   gin files, as records of what is bound, to what, and where
bindings.py  the records, applied to configs and configurables
"""

from typing import TYPE_CHECKING

from everstep.doors import lazy_names

if TYPE_CHECKING:
    from everstep.model_garden.gin import bindings
    from everstep.model_garden.gin.bindings import (
        operative_config,
        parse_config_files_and_bindings,
    )

__getattr__, __dir__ = lazy_names(__name__, __file__)
