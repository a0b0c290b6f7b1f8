"""From samples to the batches that a model takes."""

import abc
from collections.abc import Iterator
from typing import Any

from everstep.components.base import BaseClass


class PreprocessorBase(BaseClass):
    """Preprocesses images, labels and weights, then makes batches.

    The orchestrator calls `add_preprocess`: image, label, weight, batches. A pipeline that does not fit overrides it.
    Test samples have an id where others have a weight, so the weight's part is left out for them.
    """

    @abc.abstractmethod
    def image_preprocess(self, image: Any) -> Any:
        """Returns one image as the model takes it."""

    @abc.abstractmethod
    def label_preprocess(self, label: Any) -> Any:
        """Returns one label as the loss takes it."""

    def weight_preprocess(self, weight: Any) -> Any:
        """Returns one sample weight; by default as it is."""
        return weight

    @abc.abstractmethod
    def add_image_preprocess(self, generator: Any) -> Any:
        """Returns the samples with `image_preprocess` done to their images."""

    @abc.abstractmethod
    def add_label_preprocess(self, generator: Any) -> Any:
        """Returns the samples with `label_preprocess` done to their labels."""

    def add_weight_preprocess(self, generator: Any) -> Any:
        """Returns the samples with `weight_preprocess` done to their weights, where a class writes one."""
        if type(self).weight_preprocess is PreprocessorBase.weight_preprocess:
            return generator
        if hasattr(generator, "element_spec"):  # a tf.data.Dataset
            return generator.map(lambda x, y, weight: (x, y, self.weight_preprocess(weight)))
        return self._weighted(generator)

    @abc.abstractmethod
    def batchify(self, generator: Any, n_data_points: int) -> tuple[Any, int]:
        """Returns batches, and how many an epoch has: the samples by the batch size, rounded up."""

    def add_preprocess(self, generator: Any, n_data_points: int) -> tuple[Any, int]:
        """Returns preprocessed batches of samples `(x, y, sample_weight)`, and how many an epoch has."""
        generator = self.add_image_preprocess(generator)
        generator = self.add_label_preprocess(generator)
        generator = self.add_weight_preprocess(generator)
        return self.batchify(generator, n_data_points)

    def add_test_preprocess(self, generator: Any, n_data_points: int) -> tuple[Any, int]:
        """Returns preprocessed batches of samples `(x, y, data_id)`; a pipeline of your own is used for them, too."""
        if type(self).add_preprocess is not PreprocessorBase.add_preprocess:
            return self.add_preprocess(generator, n_data_points)
        generator = self.add_image_preprocess(generator)
        generator = self.add_label_preprocess(generator)
        return self.batchify(generator, n_data_points)

    def _weighted(self, generator: Any) -> Iterator[Any]:
        for x, y, weight in generator:
            yield x, y, self.weight_preprocess(weight)
