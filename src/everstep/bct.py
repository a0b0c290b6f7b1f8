"""Backward-compatible training: new embeddings that can be compared with the ones you have stored.

    from everstep import bct

With a new embedding model, every stored embedding usually has to be computed again. A model that is trained with the
old model's classifier as a second loss (arXiv 2003.11942) can be searched against the old gallery. See `docs/bct.md`.

The names below are loaded when first used: importing this package loads no Keras.
"""

import importlib
from typing import TYPE_CHECKING, Any

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
    "BCTConfig": "config",
    "BCTModel": "model",
    "BCTTask": "task",
    "Classifier": "embedding",
    "CompatibilityConfig": "config",
    "DistillBCTModel": "model",
    "Influence": "influence",
    "OldModel": "task",  # not "old": the task also registers `BCTModel`, which an old model's file may hold
    "embed": "embedding",
    "evaluate": "evaluation",
    "is_compatible": "metrics",
    "loss_func": "model",
    "rank": "metrics",
    "tar_at_far": "metrics",
    "update_gain": "metrics",
    "with_classifier": "embedding",
}

__all__ = sorted(_WHERE)


def __getattr__(name: str) -> Any:
    if name not in _WHERE:
        raise AttributeError(f"module 'everstep.bct' has no attribute {name!r}")
    value = getattr(importlib.import_module(f"everstep.recipes.bct.{_WHERE[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return list(__all__)
