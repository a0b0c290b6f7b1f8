"""Where samples come from."""

import abc
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from everstep.components.base import BaseClass


class DataLoaderBase(BaseClass):
    """Gives the samples of the three splits, one by one.

    Each method returns samples and how many there are: a `tf.data.Dataset`, or a Python generator, which may have no
    end. A generator is made anew for every epoch, with Python's and NumPy's random numbers seeded by run and epoch, so
    that an interrupted run goes on with the samples it would have seen.

    Args:
      config: A `ConfigStruct`, or None for the defaults.
      data_dir: Where the data is; None for what the configuration says.

    Attributes:
      data_dir: The folder as a `Path`, None if nobody named one. It is there before `_set_defaults` is called.
    """

    def __init__(self, config: Any = None, data_dir: Any = None) -> None:
        given = data_dir if data_dir is not None else getattr(config, "data_dir", None)
        self.data_dir = Path(given) if given is not None else None
        super().__init__(config)

    @abc.abstractmethod
    def create_training_generator(self) -> tuple[Any, int]:
        """Returns samples `(x, y, sample_weight)` and how many an epoch has."""

    @abc.abstractmethod
    def create_validation_generator(self) -> tuple[Any, int]:
        """Returns samples `(x, y, sample_weight)`, always in the same order, and how many there are."""

    @abc.abstractmethod
    def create_test_generator(self) -> tuple[Any, int]:
        """Returns samples `(x, y, data_id)`, always in the same order, and how many there are."""

    def get_validation_index(self) -> Sequence[Any] | None:
        """Returns the ids of the validation samples in their order; None counts them from 0."""
        return None
