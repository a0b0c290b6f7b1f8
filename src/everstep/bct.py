"""Backward-compatible training: new embeddings that can be compared with the ones you have stored.

    from everstep import bct

With a new embedding model, every stored embedding usually has to be computed again. A model that is trained with the
old model's classifier as a second loss (arXiv 2003.11942) can search the old gallery, see `docs/how-to/bct.md`.

The names below are loaded when first used: importing this package loads no Keras.
"""

from typing import TYPE_CHECKING

from everstep.doors import lazy_names

if TYPE_CHECKING:
    from everstep.recipes.bct import (
        BCTConfig,
        BCTModel,
        BCTTask,
        Classifier,
        CompatibilityConfig,
        DistillBCTModel,
        Influence,
        OldModel,
        embed,
        evaluate,
        is_compatible,
        loss_func,
        rank,
        tar_at_far,
        update_gain,
        with_classifier,
    )


__getattr__, __dir__ = lazy_names(__name__, __file__)
