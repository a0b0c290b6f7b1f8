"""The hooks of every attempt that trains, around those of the user."""

from collections.abc import Callable, Iterable
from typing import Any

from everstep.loop import Hook, LearningRate, StopAt, Trainer, TrainerConfig
from everstep.run.attempt import Attempt, Guard, Progress
from everstep.run.profiling import Profile
from everstep.run.pruning import pruning_gates
from everstep.run.record import Run
from everstep.task import constant_rate
from everstep.tracking import ConsoleTracker


def with_attempt_hooks(
    hooks: Iterable[Hook],
    run: Run,
    guard: Guard,
    attempt: Attempt,
    trainer: Trainer,
    config: TrainerConfig,
    console: ConsoleTracker,
    say: Callable[[str], None],
) -> list[Hook]:
    """Returns the user's hooks with those of an attempt; the order is that of their events.

    Args:
      hooks: The user's hooks; they may have a `LearningRate` of their own.
      run: The run.
      guard: Holds the directory.
      attempt: Records the attempt.
      trainer: The trainer.
      config: The trainer's section, in steps.
      console: The tracker that shows the progress.
      say: Called with lines about a trace.
    """
    profile = Profile(trainer, config, run.directory, say)
    gates: list[Any] = pruning_gates(guard.stop_requested)
    times = [StopAt(config.stop_at)] if config.stop_at else []
    around = [Progress(console, run, guard), *hooks, attempt, profile, *gates, *times]
    if not any(hook.name == LearningRate.name for hook in around):
        around.append(LearningRate(constant_rate(trainer.optimizer)))
    return around
