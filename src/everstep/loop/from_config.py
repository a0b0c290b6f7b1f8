"""What the trainer's section of a configuration says, as the loop's own objects."""

from typing import Any

from everstep.checkpoint.retention import Retention
from everstep.loop.config import TrainerConfig
from everstep.loop.recovery import Recovery


def retention(config: TrainerConfig) -> Retention:
    """Returns which checkpoints stay."""
    return Retention(
        newest=config.max_to_keep,
        every_steps=config.keep_steps,
        every_seconds=config.keep_seconds,
        best=config.keep_best,
        metric=config.best_checkpoint_eval_metric,
        mode=config.best_checkpoint_metric_comp,
    )


def controller_settings(config: TrainerConfig) -> dict[str, Any]:
    """Returns the controller's arguments that the section decides on; it is in steps by now."""
    return {
        "steps_per_loop": config.steps_per_loop,
        "checkpoint_interval": config.checkpoint_interval,
        "checkpoint_seconds": config.checkpoint_seconds,
        "save_failure": config.save_failure,
        "summary_interval": config.summary_interval,
        "recovery": Recovery(config.loss_upper_bound, config.recovery_begin_steps, config.recovery_max_trials),
    }
