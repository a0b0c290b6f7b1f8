"""Compiled Keras models on the loop.

compiled.py  trains a compiled Keras model for `fit`, `Training`, components and flows: epochs, `validation_freq`,
             saving at the ends of epochs, the engine that the next call uses again
fit/         `everstep.fit`
history.py   the History that they return; how a notebook shows it
verbose.py   what `verbose` 0, 1, 2 and "auto" mean
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
