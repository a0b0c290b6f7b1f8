"""Backward-compatible training: new embeddings that can be compared with the ones you have stored.

The public names are in `everstep.bct`.

task.py         `BCTTask`
model.py        `BCTModel` and `DistillBCTModel`, for compiled models
config.py       the configuration
influence.py    how well the old classifier recognises new embeddings
embedding.py    models with an embedding inside
old.py          the frozen copy of the old model
evaluation.py   compares an old and a new model
metrics.py      how well embeddings of one model find those of another
files.py        samples in `.npz` files
digits.py       the experiments on digits
digits_task.py  their task
digits_data.py  their data
commands/       `everstep bct`
"""

from typing import TYPE_CHECKING

from everstep.doors import lazy_names

if TYPE_CHECKING:
    from everstep.recipes.bct import evaluation
    from everstep.recipes.bct.config import (
        BCTConfig,
        CompatibilityConfig,
    )
    from everstep.recipes.bct.embedding import (
        Classifier,
        embed,
        with_classifier,
    )
    from everstep.recipes.bct.evaluation import evaluate
    from everstep.recipes.bct.files import read_samples
    from everstep.recipes.bct.influence import Influence
    from everstep.recipes.bct.metrics import (
        is_compatible,
        rank,
        tar_at_far,
        update_gain,
    )
    from everstep.recipes.bct.model import (
        BCTModel,
        DistillBCTModel,
        loss_func,
    )
    from everstep.recipes.bct.old import OldModel
    from everstep.recipes.bct.task import BCTTask

__getattr__, __dir__ = lazy_names(__name__, __file__)
