"""Backward-compatible training: new embeddings that can be compared with the ones you have stored.

    from everstep import bct

A new embedding model usually means to compute every stored embedding anew. Trained with the old model's classifier as
a second judge (arXiv 2003.11942), the new one can be searched against the old gallery as it is. `docs/bct.md` says how.

The names below are loaded when first used: importing this package loads no Keras.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from everstep.bct.classifier import Classifier as Classifier
    from everstep.bct.config import BCTConfig as BCTConfig
    from everstep.bct.config import CompatibilityConfig as CompatibilityConfig
    from everstep.bct.embedding import embed as embed
    from everstep.bct.embedding import with_classifier as with_classifier
    from everstep.bct.evaluation import evaluate as evaluate
    from everstep.bct.gain import is_compatible as is_compatible
    from everstep.bct.gain import update_gain as update_gain
    from everstep.bct.influence import Influence as Influence
    from everstep.bct.model import BCTModel as BCTModel
    from everstep.bct.model import DistillBCTModel as DistillBCTModel
    from everstep.bct.model import loss_func as loss_func
    from everstep.bct.old import OldModel as OldModel
    from everstep.bct.ranking import rank as rank
    from everstep.bct.task import BCTTask as BCTTask
    from everstep.bct.verification import tar_at_far as tar_at_far

_WHERE = {
    "BCTConfig": "config",
    "BCTModel": "model",
    "BCTTask": "task",
    "Classifier": "classifier",
    "CompatibilityConfig": "config",
    "DistillBCTModel": "model",
    "Influence": "influence",
    "OldModel": "task",  # not "old": the task also registers `BCTModel`, which an old model's file may hold
    "embed": "embedding",
    "evaluate": "evaluation",
    "is_compatible": "gain",
    "loss_func": "model",
    "rank": "ranking",
    "tar_at_far": "verification",
    "update_gain": "gain",
    "with_classifier": "embedding",
}

__all__ = sorted(_WHERE)


def __getattr__(name: str) -> Any:
    if name not in _WHERE:
        raise AttributeError(f"module 'everstep.bct' has no attribute {name!r}")
    value = getattr(importlib.import_module(f"{__name__}.{_WHERE[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return list(__all__)
