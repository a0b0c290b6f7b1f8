"""Compiled Keras models on the loop.

compiled.py        trains a compiled Keras model for `fit`, `Training`, components and flows: epochs, `validation_freq`,
                   saving at the ends of epochs, the engine that the next call uses again
class_names.py     `class_names`; labels of text become numbers, the same ones when the run is resumed
final_samples.py   the model that ships, evaluated sample by sample
fit/               `everstep.fit`
history.py         the History that they return; how a notebook shows it
verbose.py         what `verbose` 0, 1, 2 and "auto" mean
"""

from typing import TYPE_CHECKING

from everstep.doors import lazy_names

if TYPE_CHECKING:
    from everstep.frontends import compiled
    from everstep.frontends.class_names import ClassNames
    from everstep.frontends.compiled import (
        CompiledTaskConfig,
        RunPlan,
        train_compiled,
        validated_epochs,
    )
    from everstep.frontends.final_samples import write_final_samples
    from everstep.frontends.verbose import (
        Verbose,
        log_output,
        verbosity,
    )

__getattr__, __dir__ = lazy_names(__name__, __file__)
