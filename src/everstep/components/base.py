"""What all components have in common: defaults first, then what the configuration says."""

import abc
from typing import Any


class BaseClass(abc.ABC):
    """A class whose parameters are set in two places, and nowhere else.

        class Preprocessor(PreprocessorBase):
            def _set_defaults(self):
                self.batch_size = 8

            def _load_params(self, config):
                self.batch_size = config.batch_size

    `Preprocessor(None)` works with the defaults: that is for exploring, in a notebook say.

    Args:
      config: A `ConfigStruct`, or None for the defaults.
    """

    def __init__(self, config: Any = None) -> None:
        self.config = config
        self._set_defaults()
        if config is not None:
            self._load_params(config)

    @abc.abstractmethod
    def _set_defaults(self) -> None:
        """Sets every parameter of the class to its default."""

    @abc.abstractmethod
    def _load_params(self, config: Any) -> None:
        """Sets the same parameters to what the configuration says."""
