"""How a compiled model is trained: whatever happens, happens at the ends of epochs."""

import math
from typing import Any

from everstep.loop.config import TrainerConfig


def per_epoch(epochs: int, steps: int, **others: Any) -> TrainerConfig:
    """Returns a trainer's section with windows, evaluations and checkpoints at the ends of epochs.

    Args:
      epochs: How many in all.
      steps: Batches in each.
      **others: Fields that have other values.
    """
    settings = {
        "train_steps": epochs * steps,
        "steps_per_loop": steps,
        "validation_interval": steps,
        "checkpoint_interval": steps,
        "loss_upper_bound": math.inf,  # that of a regression may be large
        "recovery_max_trials": -1,  # a callback may want to see it; nothing that is not finite is saved
    }
    return TrainerConfig(**{**settings, **others})
