"""`--epochs 5` where `trainer.epochs=5` is meant: which key to write for an option that there is not."""

import contextlib
from collections.abc import Sequence

from everstep.config import get_exp_config
from everstep.config.node import keys_like
from everstep.errors import UsageError
from everstep.experiment_config import ExperimentConfig
from everstep.flow.checking import parameter_meant

_OF_EXPERIMENTS = ("train", "eval", "check", "config", "tune", "submit")


def hint(option: str, words: Sequence[str]) -> str:
    """Returns what to write instead of an option; nothing where no key has a name like it.

    Args:
      option: As it was given: `--epochs`.
      words: The whole command line.
    """
    command, *rest = words or ("",)
    name, value = option.lstrip("-").replace("-", "_"), _value(option, words)
    named = next((word for word in rest if not word.startswith("-") and "=" not in word), "")
    if command == "flow":
        meant = parameter_meant(name)
        keys = [f"{named or 'TASK'}.{meant}"] if meant else []
    elif command in _OF_EXPERIMENTS:
        keys = keys_like(_experiment(named), name)
    else:
        keys = []
    return f"a value is written without dashes: {' or '.join(f'{key}={value}' for key in keys)}" if keys else ""


def _experiment(name: str) -> ExperimentConfig:
    """Returns a registered experiment; for one that is not known without the user's modules, what all have."""
    with contextlib.suppress(UsageError):
        found = get_exp_config(name)
        if isinstance(found, ExperimentConfig):
            return found
    return ExperimentConfig()


def _value(option: str, words: Sequence[str]) -> str:
    """Returns the value that follows an option, with or without `=`; `…` where none does."""
    for word, following in zip(words, [*words[1:], ""], strict=True):
        name, equals, value = word.partition("=")
        if name == option:
            return value if equals else following if following and not following.startswith("-") else "…"
    return "…"
