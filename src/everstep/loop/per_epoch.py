"""How a compiled model is trained: whatever happens, happens at the ends of epochs."""

import math
from typing import Any

from everstep.loop.config import TrainerConfig


def per_epoch(epochs: int, steps: int | None, **others: Any) -> TrainerConfig:
    """Returns a trainer's section with windows, evaluations and checkpoints at the ends of epochs.

    Args:
      epochs: How many in all.
      steps: Batches in each; None where the first epoch will tell.
      **others: Fields that have other values.
    """
    every: int | str = "1 epoch" if steps is None else steps
    length = {"train_steps": None, "epochs": float(epochs)} if steps is None else {"train_steps": epochs * steps}
    settings = {
        **length,
        "steps_per_loop": every,
        "validation_interval": every,
        "checkpoint_interval": every,
        "loss_upper_bound": math.inf,  # that of a regression may be large
        "recovery_max_trials": -1,  # a callback may want to see it; nothing that is not finite is saved
    }
    return TrainerConfig(**{**settings, **others})
