"""What a flow trains on, is validated with and measured by."""

import dataclasses
from typing import Any

import numpy as np

from everstep.errors import UsageError

_NEEDED = ("train_data", "train_label")


@dataclasses.dataclass(frozen=True)
class Splits:
    """Each is `(inputs, labels)`, or what brings its own labels; validation and test may be None."""

    train: Any
    validation: Any
    test: Any


def splits_of(dataset: Any, params: Any, who: str) -> Splits:
    """Returns the splits of what `preprocessing_train` left.

    Args:
      dataset: A `DataSet`, or anything with its attributes.
      params: The task's parameters; `validation_split` is the share of the training data, its end, to validate with.
      who: The task's name, for messages.

    Raises:
      UsageError: It is none, or has no data to train on.
    """
    if dataset is None:
        raise UsageError(f"{who}.preprocessing_train() left no data: set self.dataset = DataSet(train_data=…, …)")
    if not all(hasattr(dataset, name) for name in _NEEDED) or dataset.train_data is None:
        raise UsageError(
            f"{who}.dataset is {type(dataset).__name__}, expected a DataSet with train_data, train_label, test_data, "
            "test_label"
        )
    train, validation = _pair(dataset, "train"), _pair(dataset, "validation")
    if validation is None and params.validation_split:
        train, validation = _divided(dataset, params.validation_split, who)
    return Splits(train, validation, _pair(dataset, "test"))


def _pair(dataset: Any, split: str) -> Any:
    data, label = (getattr(dataset, f"{split}_{part}", None) for part in ("data", "label"))
    return data if data is None or label is None else (data, label)


def _divided(dataset: Any, share: float, who: str) -> tuple[Any, Any]:
    if not isinstance(dataset.train_data, np.ndarray) or dataset.train_label is None:
        raise UsageError(
            f"{who}.validation_split: received {share}, but only arrays can be divided: set validation_data in the "
            "DataSet, or validation_split to 0"
        )
    data, label = dataset.train_data, np.asarray(dataset.train_label)
    first = len(data) - int(len(data) * share)
    if not 0 < first < len(data):
        raise UsageError(f"{who}.validation_split: {share} of {len(data)} samples leaves nothing to validate with")
    return (data[:first], label[:first]), (data[first:], label[first:])
