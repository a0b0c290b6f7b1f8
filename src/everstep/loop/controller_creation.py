"""`create_controller`: the loop with the intervals and limits of a trainer's section."""

from typing import Any

from everstep.loop.config import TrainerConfig
from everstep.loop.controller import Controller
from everstep.loop.recovery import Recovery
from everstep.loop.trainer import Trainer


def create_controller(config: TrainerConfig, trainer: Trainer, trains: bool, **parts: Any) -> Controller:
    """Returns the loop around a trainer.

    Args:
      config: The trainer's section, with all intervals in steps.
      trainer: Evaluates, and maybe trains.
      trains: Whether it trains.
      **parts: Other arguments of `Controller`.
    """
    return Controller(
        trainer=trainer if trains else None,
        evaluator=trainer,
        checkpoint_interval=config.checkpoint_interval,  # type: ignore[arg-type]
        checkpoint_seconds=config.checkpoint_seconds,
        save_failure=config.save_failure,
        summary_interval=config.summary_interval,  # type: ignore[arg-type]
        recovery=Recovery(
            config.loss_upper_bound,
            config.recovery_begin_steps,
            config.recovery_max_trials,
            watched=trainer.watched_log,
        ),
        **parts,
    )
