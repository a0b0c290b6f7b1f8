"""Backward-compatible training: new embeddings that can be compared with the ones you have stored.

    from everstep import bct

With a new embedding model, every stored embedding usually has to be computed again. A model that is trained with the
old model's classifier as a second loss (arXiv 2003.11942) can search the old gallery, see `docs/how-to/bct.md`.

The names below are loaded when first used: importing this package loads no Keras.
"""

from typing import TYPE_CHECKING

from everstep.lazy_names import lazy_names

if TYPE_CHECKING:
    from everstep.recipes.bct.config import BCTConfig as BCTConfig
    from everstep.recipes.bct.config import CompatibilityConfig as CompatibilityConfig
    from everstep.recipes.bct.embedding import Classifier as Classifier
    from everstep.recipes.bct.embedding import embed as embed
    from everstep.recipes.bct.embedding import with_classifier as with_classifier
    from everstep.recipes.bct.evaluation import evaluate as evaluate
    from everstep.recipes.bct.influence import Influence as Influence
    from everstep.recipes.bct.metrics import is_compatible as is_compatible
    from everstep.recipes.bct.metrics import rank as rank
    from everstep.recipes.bct.metrics import tar_at_far as tar_at_far
    from everstep.recipes.bct.metrics import update_gain as update_gain
    from everstep.recipes.bct.model import BCTModel as BCTModel
    from everstep.recipes.bct.model import DistillBCTModel as DistillBCTModel
    from everstep.recipes.bct.model import loss_func as loss_func
    from everstep.recipes.bct.old import OldModel as OldModel
    from everstep.recipes.bct.task import BCTTask as BCTTask

_WHERE = {
    "BCTConfig": "everstep.recipes.bct.config",
    "BCTModel": "everstep.recipes.bct.model",
    "BCTTask": "everstep.recipes.bct.task",
    "Classifier": "everstep.recipes.bct.embedding",
    "CompatibilityConfig": "everstep.recipes.bct.config",
    "DistillBCTModel": "everstep.recipes.bct.model",
    "Influence": "everstep.recipes.bct.influence",
    "OldModel": "everstep.recipes.bct.task",  # not "old": an old file may hold a `BCTModel`, which the task registers
    "embed": "everstep.recipes.bct.embedding",
    "evaluate": "everstep.recipes.bct.evaluation",
    "is_compatible": "everstep.recipes.bct.metrics",
    "loss_func": "everstep.recipes.bct.model",
    "rank": "everstep.recipes.bct.metrics",
    "tar_at_far": "everstep.recipes.bct.metrics",
    "update_gain": "everstep.recipes.bct.metrics",
    "with_classifier": "everstep.recipes.bct.embedding",
}

__all__ = sorted(_WHERE)
__getattr__, __dir__ = lazy_names(__name__, _WHERE)
