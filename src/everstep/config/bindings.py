"""Bindings: values in another language than `KEY=VALUE`, such as gin's. What reads them is found by an entry point.

    [project.entry-points."everstep.bindings"]
    gin = "everstep.model_garden.gin.bindings"

The module has `read(files, params, stored)`, which returns `Bindings`, and `operative_config()`.
"""

import importlib.util
from collections.abc import Callable, Sequence
from typing import Any, Protocol, TypeVar

from everstep.config.base import Config
from everstep.config.layers import Layer
from everstep.entry_points import entry_points, missing_companions
from everstep.errors import UsageError

ENTRY_POINTS = "everstep.bindings"
"""The group of the entry points."""

Function = TypeVar("Function", bound=Callable[..., Any])


class Bindings(Protocol):
    """What was bound, for one configuration."""

    def backend(self) -> str | None:
        """Returns what is bound to `RuntimeConfig.backend`; called first, before Keras is imported."""

    def import_modules(self) -> None:
        """Imports the modules that the files import; called before the experiment is looked up."""

    def layers(self, config: Config) -> list[Layer]:
        """Returns a layer for each binding of a field of the experiment's config."""

    def apply(self) -> None:
        """Hands on the bindings that name no field; called when the configuration is valid."""

    def text(self) -> str:
        """Returns what a stored config lacks, so that reading it gives the same bindings."""


class NoBindings:
    """Nothing is bound."""

    def backend(self) -> str | None:
        """Returns None."""
        return None

    def import_modules(self) -> None:
        """Does nothing."""

    def layers(self, config: Config) -> list[Layer]:
        """Returns no layers."""
        return []

    def apply(self) -> None:
        """Does nothing."""

    def text(self) -> str:
        """Returns an empty text."""
        return ""


def read_bindings(files: Sequence[str], params: Sequence[str], stored: Sequence[tuple[str, str]]) -> Bindings:
    """Reads bindings; later ones win.

    Args:
      files: The files of `--gin-file`.
      params: The texts of `--gin-params`; they come after the files.
      stored: What `Bindings.text` once returned, each with where it was kept; it comes before the files.

    Raises:
      UsageError: Something cannot be read, or nothing is installed that reads it.
    """
    if not (files or params or stored):
        return NoBindings()
    reader = _reader()
    if reader is None:
        gone = ", ".join(missing_companions(ENTRY_POINTS).values())
        raise UsageError(f"nothing reads gin bindings: this installation is without {gone}")
    found: Bindings = reader.read(files, params, stored)
    return found


def operative_config() -> str | None:
    """Returns the bindings that this process has used, as text; None if there are none."""
    reader = _reader()
    return None if reader is None else reader.operative_config()


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


def _reader() -> Any:
    return next((point.load() for point in entry_points(ENTRY_POINTS)), None)
