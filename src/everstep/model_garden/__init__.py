"""Model Garden's and orbit's spellings: programs and command lines that were written for them keep their calls.

A companion: it uses the core as any package could, and the core does without it.

controller.py      `Controller`, also with orbit's arguments: which are taken, renamed or refused
plain_trainers.py  objects that only have `train` and `evaluate`: what of them is saved, who counts steps
standard.py        `StandardTrainer` and `StandardEvaluator`: their options and order of calls
gin/               gin bindings
absl_flags.py      their flags on `everstep …`: names respelled, ignored or declined; what `--params_override` holds is
                   read by `config/overrides.py`
absl_program.py    users' own programs: the flags, and which value wins
"""

from typing import TYPE_CHECKING

from everstep.doors import lazy_names

if TYPE_CHECKING:
    from everstep.model_garden import (
        absl_program,
        gin,
    )
    from everstep.model_garden.controller import Controller
    from everstep.model_garden.standard import (
        StandardEvaluator,
        StandardEvaluatorOptions,
        StandardTrainer,
        StandardTrainerOptions,
    )

__getattr__, __dir__ = lazy_names(__name__, __file__)
