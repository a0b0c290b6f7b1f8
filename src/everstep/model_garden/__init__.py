"""Model Garden's and orbit's spellings: programs and command lines that were written for them keep their calls.

A companion: it uses the core as any package could, and the core does without it.

controller.py      `Controller`, also with orbit's arguments: `everstep.Controller`
plain_trainers.py  objects that only have `train` and `evaluate`
standard.py        `StandardTrainer` and `StandardEvaluator`, as in orbit
"""

from typing import TYPE_CHECKING

from everstep.doors import lazy_names

if TYPE_CHECKING:
    from everstep.model_garden.controller import Controller
    from everstep.model_garden.standard import (
        StandardEvaluator,
        StandardEvaluatorOptions,
        StandardTrainer,
        StandardTrainerOptions,
    )

__getattr__, __dir__ = lazy_names(__name__, __file__)
