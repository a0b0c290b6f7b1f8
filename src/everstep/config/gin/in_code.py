"""What code says to gin: which functions bindings may reach, and which files to read."""

import importlib.util
import os
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

from everstep.config.gin import bindings as gin_bindings
from everstep.config.registry import load_entry_points

Function = TypeVar("Function", bound=Callable[..., Any])


def configurable(function: Function) -> Function:
    """Opens the arguments of a function to gin bindings, where gin is installed; what a caller passes wins.

    @configurable
    def transformer(vocabulary, attention=self_attention): ...

    transformer.attention = @talking_heads
    """
    if importlib.util.find_spec("gin") is None:
        return function
    import gin

    opened: Function = gin.configurable(function)
    return opened


def parse_config_files_and_bindings(
    config_files: Iterable[str | os.PathLike[str]] | None, bindings: Iterable[str] | None = None
) -> None:
    """Applies the bindings in files, and then single ones, to the configurables they name.

    It stands in for the function of the same name in the package `gin`, and reads with more care: nothing is imported
    that the project does not allow, and all that is wrong is told at once. Bindings of config fields, such as
    `TrainerConfig.train_steps`, are left to `parse_configuration`.

    Raises:
      UsageError: A file cannot be read, or everything wrong in the bindings, each with its line.
    """
    load_entry_points()  # bindings may name fields of their configs
    found = gin_bindings.read(config_files or (), bindings or ())
    found.import_modules()
    found.apply()
