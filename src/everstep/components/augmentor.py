"""Samples made more varied, before they are preprocessed."""

import abc
from typing import Any

from everstep.components.base import BaseClass


class AugmentorBase(BaseClass):
    """Changes samples where `do_train_augmentation` or `do_validation_augmentation` asks for it; never test data."""

    @abc.abstractmethod
    def add_augmentation(self, generator: Any) -> Any:
        """Returns the samples `(x, y, sample_weight)`, changed; what kind of iterable it is stays the same."""

    def add_validation_augmentation(self, generator: Any) -> Any:
        """Returns the validation samples, changed; by default as training samples are."""
        return self.add_augmentation(generator)
