"""From epochs to steps: once the training data is there, everything counts in steps."""

from typing import TypeVar

from everstep.config import ConfigError, Problem
from everstep.config.problem import show
from everstep.loop.config import INTERVALS, TrainerConfig, epochs_in, wrong_multiples

AnyTrainerConfig = TypeVar("AnyTrainerConfig", bound=TrainerConfig)


def in_steps(config: AnyTrainerConfig, batches_per_epoch: int | None, counting: bool = False) -> AnyTrainerConfig:
    """Returns the same settings with plain steps everywhere.

        in_steps(TrainerConfig(epochs=3, validation_interval="0.5 epochs"), batches_per_epoch=10)
        # TrainerConfig(train_steps=30, epochs=None, validation_interval=5, …)

    Args:
      config: The trainer's section; left as it is.
      batches_per_epoch: How many steps an epoch has; None if the training data does not say.
      counting: Whether the first epoch will tell. `epochs` stays then, and what happens once an epoch happens at the
        end of every window, which is one.

    Raises:
      UsageError: Something is given in epochs and their length is not known, or the steps do not fit each other.
    """
    given = _in_epochs(config)
    if batches_per_epoch is None and given and counting:
        return config.replace(**dict.fromkeys(set(given) - {"epochs"}, 1))
    if batches_per_epoch is None and given:
        raise ConfigError([_length_unknown(name, getattr(config, name)) for name in given])
    steps = {name: max(1, round(epochs * (batches_per_epoch or 0))) for name, epochs in given.items()}
    total = {"train_steps": steps.pop("epochs")} if "epochs" in steps else {}
    new = config.replace(**steps, **total)
    problems = [_with_length(problem, batches_per_epoch) for problem in wrong_multiples(new)]
    if problems:
        raise ConfigError(problems)
    return new


def _in_epochs(config: TrainerConfig) -> dict[str, float]:
    """Returns the fields that are given in epochs, and how many."""
    found = {"epochs": config.epochs} | {name: epochs_in(getattr(config, name)) for name in INTERVALS}
    return {name: epochs for name, epochs in found.items() if epochs is not None}


def _with_length(problem: Problem, batches_per_epoch: int | None) -> Problem:
    return Problem(f"trainer.{problem.path}", f"{problem.text}; an epoch is {batches_per_epoch} steps")


def _length_unknown(name: str, value: object) -> Problem:
    steps = "train_steps=1000" if name == "epochs" else f"{name}=1000"
    text = f"received {show(value)}, but the training data does not say how many batches an epoch has"
    return Problem(f"trainer.{name}", f"{text}: give steps, as trainer.{steps}")
