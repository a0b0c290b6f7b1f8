"""A command: what the table of commands knows of each.

A package adds a command of its own to `everstep` by an entry point with the command's name:

    [project.entry-points."everstep.commands"]
    digits = "my_package.commands:DIGITS"

    DIGITS = Command("Tools", "Draw some digits.", "my_package.draw_digits")

`my_package.draw_digits` has an `app`, made by `new_app`, and is imported when the command is called.
"""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import typer

from everstep.errors import UsageError


class Command(NamedTuple):
    """A command.

    Attributes:
      group: The heading of `everstep --help` that it is listed below.
      summary: The first line of its help.
      module: The module whose `app` it is.
      keys_like: Returns the keys that an unknown option such as `batch-size` may mean, for the first argument of the
        command line; None where the command takes no values.
      trains_as_several: Whether several processes may run it together, and end together where it is refused.
      also_typed: Words that people type in place of it, and what to type: `{"compare": "everstep runs compare"}`.
    """

    group: str
    summary: str
    module: str
    keys_like: Callable[[str, str], list[str]] | None = None
    trains_as_several: bool = False
    also_typed: Mapping[str, str] = {}


def words_for(command_line: str, words: str) -> dict[str, str]:
    """Returns for each of several words, separated by blanks, the command line that is meant by it."""
    return dict.fromkeys(words.split(), command_line)


def is_script(word: str) -> bool:
    """Returns whether a word names a Python file, where a command expects the name of something else."""
    return word.endswith(".py")


def refuse_script(word: str, key: str) -> None:
    """Refuses a Python file where the name of something registered is expected.

    Raises:
      UsageError: It is one; says how it is run.
    """
    if is_script(word):
        raise UsageError("is a script, which needs no command", key=key, received=word, remedy=f"run it: python {word}")


def new_app(add_completion: bool = False, **settings: Any) -> typer.Typer:
    """Returns an empty typer application with this project's settings."""
    return typer.Typer(add_completion=add_completion, rich_markup_mode=None, pretty_exceptions_enable=False, **settings)


def experiment_keys(option: str, target: str) -> list[str]:
    """Returns the keys of an experiment that are like an option: for a command that takes an experiment's values."""
    from everstep.config import get_exp_config, keys_like
    from everstep.experiment_config import ExperimentConfig

    try:
        experiment = get_exp_config(target)
    except UsageError:
        experiment = None
    # If the experiment needs the user's modules: the keys that all have.
    known = experiment if isinstance(experiment, ExperimentConfig) else ExperimentConfig()
    option = option.replace("-", "_")
    name = _SHORT_NAMES.get(option, option)
    return _learning_rate_keys(known) if name == "learning_rate" else keys_like(known, name)


_SHORT_NAMES = {"lr": "learning_rate", "bs": "global_batch_size", "batch": "global_batch_size", "steps": "train_steps"}
"""What people call keys, whose names are too different for a likeness."""


def _learning_rate_keys(experiment: Any) -> list[str]:
    """Returns the key of the first learning rate, which depends on the schedule: `….cosine.initial_learning_rate`."""
    from everstep.config import walk

    place = "trainer.optimizer_config.learning_rate."
    keys = [path for path, _ in walk(experiment.as_dict()) if path.startswith(place)]
    return [path for path in keys if path.endswith("learning_rate")][:1]
