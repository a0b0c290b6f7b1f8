"""Compiled Keras models on the loop.

compiled.py  trains a compiled Keras model: `fit`, `Training`, components and flows call it
fit/         `everstep.fit`
verbose.py   what `verbose` means
"""

from typing import TYPE_CHECKING

from everstep.doors import lazy_names

if TYPE_CHECKING:
    from everstep.frontends import compiled
    from everstep.frontends.compiled import (
        CompiledTaskConfig,
        RunPlan,
        train_compiled,
        validated_epochs,
    )
    from everstep.frontends.verbose import (
        Verbose,
        log_output,
        verbosity,
    )

__getattr__, __dir__ = lazy_names(__name__, __file__)
