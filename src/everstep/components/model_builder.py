"""Where the model comes from: a compiled Keras model, or anything with `fit`, `predict` and `score`."""

import abc
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from everstep.components.base import BaseClass
from everstep.components.served import open_served


class ModelBuilderBase(BaseClass):
    """Builds the Keras model, and says how it is trained."""

    @abc.abstractmethod
    def get_compiled_model(self) -> Any:
        """Returns a new, compiled Keras model; called again whenever one is needed."""

    def get_callbacks(self) -> Sequence[Any]:
        """Returns Keras callbacks to train with. ModelCheckpoint and TensorBoard write into the run's folder."""
        return []

    def get_class_weight(self) -> Mapping[int, float] | None:
        """Returns the weight of each class in the loss, or None."""
        return None

    def load(self, path: Any) -> Any:
        """Returns an exported model; its `predict(x)` answers a batch."""
        return open_served(path)


class GenericModelBuilderBase(BaseClass):
    """Trains an estimator in the manner of scikit-learn."""

    @abc.abstractmethod
    def fit(
        self, train_data_gen: Iterator[Any], n_iter_train: int, val_data_gen: Iterator[Any], n_iter_val: int
    ) -> Any:
        """Returns a fitted estimator with `predict(x)` and, if it has one, `score(x, y)`.

        Args:
          train_data_gen: Batches `(x, y, sample_weight)`, epoch after epoch without end.
          n_iter_train: How many batches an epoch has.
          val_data_gen: The same of the validation data.
          n_iter_val: How many batches they are.
        """
