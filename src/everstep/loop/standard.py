"""`StandardTrainer` and `StandardEvaluator`: the public names of this path; see `everstep/model_garden/standard.py`."""

from typing import TYPE_CHECKING

from everstep.doors import lazy_names

if TYPE_CHECKING:
    from everstep.model_garden import (
        StandardEvaluator,
        StandardEvaluatorOptions,
        StandardTrainer,
        StandardTrainerOptions,
    )


__getattr__, __dir__ = lazy_names(__name__, __file__)
