"""A command: what the table of commands knows of each.

A package adds a command of its own to `everstep` by an entry point with the command's name:

    [project.entry-points."everstep.commands"]
    digits = "my_package.commands:DIGITS"

    DIGITS = Command("Tools", "Draw some digits.", "my_package.draw_digits")

`my_package.draw_digits` has an `app`, made by `new_app`, and is imported when the command is called.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import typer


class Command(NamedTuple):
    """A command.

    Attributes:
      group: The heading of `everstep --help` that it is listed below.
      summary: The first line of its help.
      module: The module whose `app` it is.
      keys_like: Returns the keys that an unknown option such as `epochs` may mean, for the first argument of the
        command line; None where the command takes no values.
      trains_as_several: Whether several processes may run it together, and end together where it is refused.
    """

    group: str
    summary: str
    module: str
    keys_like: Callable[[str, str], list[str]] | None = None
    trains_as_several: bool = False


def new_app(**settings: Any) -> typer.Typer:
    """Returns an empty typer application with this project's settings."""
    return typer.Typer(add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False, **settings)


def experiment_keys(option: str, target: str) -> list[str]:
    """Returns the keys of an experiment that are like an option: for a command that takes an experiment's values."""
    from everstep.config import get_exp_config, keys_like
    from everstep.errors import UsageError
    from everstep.experiment_config import ExperimentConfig

    try:
        experiment = get_exp_config(target)
    except UsageError:
        experiment = None
    # If the experiment needs the user's modules: the keys that all have.
    return keys_like(experiment if isinstance(experiment, ExperimentConfig) else ExperimentConfig(), option)
