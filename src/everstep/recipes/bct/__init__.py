"""Backward-compatible training: new embeddings that can be compared with the ones you have stored.

The public names are in `everstep.bct`.

task.py         `BCTTask`: the losses of a step, which data weights of new classes are made from
model.py        `BCTModel` and `DistillBCTModel`, for compiled models; which variants they take
config.py       the configuration: variant, weight, temperature, old model: defaults and refusals
influence.py    the influence loss: how old and new classes are matched (by name), which samples count, weights of new
                classes
embedding.py    models with an embedding inside: the classifier (normalized, scale 16), how it is found
old.py          the frozen copy of the old model: from a run or a file, its classifier
evaluation.py   compares an old and a new model: which figures, compatible or not, gain
metrics.py      mAP, top-k, TAR@FAR, TPIR@FPIR: their formulas, labels that are refused
files.py        samples in `.npz` files: `x` and `y`
digits.py       `bct/…`: the experiments on digits
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
