"""Gin bindings, for fields of configs and for gin's configurables; what code calls.

reading.py   gin files, includes and macros, as records of what is bound, to what, and where
bindings.py  which config field or configurable a binding sets, scopes, which binding wins; unknown names
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
